//! Whom commands run as: the container's user, as the image or the person named it, looked up in the container's own books.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

const BOOK_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub uid: u32,
    pub gid: u32,
    pub home: Option<PathBuf>,
}

/// Finds `name`, `name:group`, `1000` or `1000:1000`. It is looked up for each command, because one before may have made the user.
pub fn find(wanted: &str) -> Option<Account> {
    find_in(wanted, &book("/etc/passwd"), &book("/etc/group"))
}

fn book(path: &str) -> String {
    let mut text = Vec::new();
    let _ = File::open(path).and_then(|file| file.take(BOOK_BYTES_MAX).read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}

fn find_in(wanted: &str, users: &str, groups: &str) -> Option<Account> {
    let (user, group) = wanted.split_once(':').map_or((wanted, None), |(user, group)| (user, Some(group)));
    let number: Option<u32> = user.parse().ok();
    let entries = users.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let (uid, gid) = (fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?);
        Some((fields[0], Account { uid, gid, home: fields.get(5).map(PathBuf::from) }))
    });
    let known = entries
        .into_iter()
        .find(|(name, account)| *name == user || number == Some(account.uid))
        .map(|(_, account)| account);
    let account = known.or_else(|| number.map(|uid| Account { uid, gid: 0, home: None }))?;
    let Some(group) = group.filter(|group| !group.is_empty()) else { return Some(account) };
    let named = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.first() == Some(&group)).then(|| fields.get(2)?.parse().ok()).flatten()
    };
    let gid = group.parse().ok().or_else(|| groups.lines().find_map(named))?;
    Some(Account { gid, ..account })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_found_by_name_and_by_number_and_groups_beside_them() {
        let users = "root:x:0:0:root:/root:/bin/sh\nbroken\ndev:x:1000:1001::/home/dev:/bin/sh\n";
        let groups = "root:x:0:\nstaff:x:50:dev\n";
        let found = |wanted| find_in(wanted, users, groups).map(|account| (account.uid, account.gid));
        assert_eq!(found("dev"), Some((1000, 1001)));
        assert_eq!(found("1000"), Some((1000, 1001)));
        assert_eq!(found("dev:staff"), Some((1000, 50)));
        assert_eq!(found("7:8"), Some((7, 8)));
        assert_eq!(found("7"), Some((7, 0)));
        assert_eq!(found("nobody"), None);
        assert_eq!(found("dev:nowhere"), None);
    }
}
