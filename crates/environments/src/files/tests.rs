//! What tools do with files, and what nobody can make them do.

use std::os::unix::fs::symlink;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

/// A worktree, with something outside of it that nobody may reach.
struct Tree {
    folder: TempDir,
    files: Files,
}

fn tree() -> Tree {
    let folder = tempfile::tempdir().unwrap();
    let top = folder.path().join("worktree");
    fs::create_dir(&top).unwrap();
    fs::write(folder.path().join("outside"), "untouched").unwrap();
    fs::write(top.join("lines"), "one\ntwo\nthree").unwrap();
    fs::write(top.join(".git"), "gitdir: elsewhere").unwrap();
    let files = Files::of(&top).unwrap();
    Tree { folder, files }
}

impl Tree {
    fn top(&self) -> PathBuf {
        self.folder.path().join("worktree")
    }

    fn outside(&self) -> String {
        fs::read_to_string(self.folder.path().join("outside")).unwrap()
    }
}

fn range(first: usize, last: usize) -> Lines {
    Lines::Range { first, last }
}

#[test]
fn a_range_reaches_the_last_line_and_no_further() {
    let tree = tree();
    for (lines, text) in [
        (Lines::All, "one\ntwo\nthree"),
        (range(1, 1), "one\n"),
        (range(2, 3), "two\nthree"),
        (range(3, 3), "three"),
        (range(1, 99), "one\ntwo\nthree"),
    ] {
        assert_eq!(tree.files.read("lines", lines).unwrap(), text, "{lines:?}");
    }
    for lines in [range(0, 1), range(3, 2), range(4, 9)] {
        assert_eq!(tree.files.read("lines", lines).unwrap_err().kind, ErrorKind::Invalid, "{lines:?}");
    }
}

#[test]
fn absolute_paths_below_the_workdir_are_those_of_the_worktree() {
    let tree = tree();
    assert_eq!(tree.files.read("/workdir/lines", Lines::All).unwrap(), "one\ntwo\nthree");
    tree.files.write("/workdir/deep/er/file", b"x").unwrap();
    assert_eq!(fs::read_to_string(tree.top().join("deep/er/file")).unwrap(), "x");
    assert_eq!(tree.files.list("/workdir").unwrap(), ["deep/", "lines"]);
    assert_eq!(tree.files.list(".").unwrap(), ["deep/", "lines"]);
}

#[test]
fn nothing_outside_is_reached_by_any_path() {
    let tree = tree();
    let outside = tree.folder.path().join("outside");
    for path in [
        "../outside",
        "deep/../../outside",
        outside.to_str().unwrap(),
        "/etc/passwd",
        "/workdir/../etc/passwd",
        "a\0b",
    ] {
        assert_eq!(tree.files.read(path, Lines::All).unwrap_err().kind, ErrorKind::Invalid, "{path:?}");
        assert_eq!(tree.files.write(path, b"x").unwrap_err().kind, ErrorKind::Invalid, "{path:?}");
        assert_eq!(tree.files.delete(path).unwrap_err().kind, ErrorKind::Invalid, "{path:?}");
        assert_eq!(tree.files.list(path).unwrap_err().kind, ErrorKind::Invalid, "{path:?}");
    }
    assert_eq!(tree.outside(), "untouched");
}

#[test]
fn nothing_outside_is_reached_by_a_link() {
    let tree = tree();
    symlink("../outside", tree.top().join("up")).unwrap();
    symlink(tree.folder.path().join("outside"), tree.top().join("absolute")).unwrap();
    symlink(tree.folder.path(), tree.top().join("folder")).unwrap();
    symlink("loop", tree.top().join("loop")).unwrap();
    symlink("/proc/self/exe", tree.top().join("magic")).unwrap();
    for path in ["up", "absolute", "folder/outside", "loop", "magic", "folder/new/file"] {
        assert!(tree.files.read(path, Lines::All).is_err(), "{path}");
        assert!(tree.files.write(path, b"x").is_err(), "{path}");
        assert!(tree.files.edit(path, "untouched", "x", None).is_err(), "{path}");
    }
    assert!(tree.files.list("folder").is_err());
    assert!(tree.files.delete("folder/outside").is_err());
    // Of a link itself only the link goes.
    tree.files.delete("absolute").unwrap();
    assert_eq!(tree.outside(), "untouched");
    assert!(!tree.folder.path().join("new").exists());
}

#[test]
fn a_link_that_stays_inside_is_followed() {
    let tree = tree();
    symlink("lines", tree.top().join("link")).unwrap();
    tree.files.write("link", b"changed").unwrap();
    assert_eq!(fs::read_to_string(tree.top().join("lines")).unwrap(), "changed");
    assert!(fs::symlink_metadata(tree.top().join("link")).unwrap().is_symlink());
}

#[test]
fn what_is_gits_is_not_for_tools() {
    let tree = tree();
    for path in [".git", ".git/config", ".GIT/hooks/pre-commit", "sub/.git/config"] {
        assert!(tree.files.write(path, b"x").is_err(), "{path}");
        assert!(tree.files.delete(path).is_err(), "{path}");
        assert!(tree.files.read(path, Lines::All).is_err(), "{path}");
    }
}

#[test]
fn a_file_that_is_written_keeps_its_rights_and_leaves_no_draft() {
    let tree = tree();
    let script = tree.top().join("script");
    fs::write(&script, "old").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    tree.files.write("script", b"new").unwrap();
    assert_eq!(fs::metadata(&script).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(tree.files.list("").unwrap(), ["lines", "script"]);
    for path in ["", "/workdir", "lines/below"] {
        assert!(tree.files.write(path, b"x").is_err(), "{path:?}");
    }
}

#[test]
fn what_is_no_text_is_refused_with_a_reason() {
    let tree = tree();
    fs::write(tree.top().join("binary"), b"a\0b").unwrap();
    fs::write(tree.top().join("latin"), b"caf\xe9").unwrap();
    File::create(tree.top().join("huge")).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
    rustix::fs::mknodat(CWD, tree.top().join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    for (path, reason) in [
        ("binary", "binary"),
        ("latin", "binary"),
        ("huge", "larger"),
        ("pipe", "no ordinary file"),
        (".", "directory"),
    ] {
        let error = tree.files.read(path, Lines::All).unwrap_err();
        assert!(error.message.contains(reason), "{path}: {error}");
        assert_eq!(error.kind, ErrorKind::Invalid);
    }
    assert_eq!(tree.files.read("nothing", Lines::All).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(tree.files.delete("nothing").unwrap_err().kind, ErrorKind::NotFound);
}

#[test]
fn an_edit_takes_the_only_match_or_the_one_that_is_named() {
    let tree = tree();
    tree.files.edit("lines", "two", "2", None).unwrap();
    tree.files.write("twice", b"a\nsame\nb\nsame\nc\n").unwrap();
    let error = tree.files.edit("twice", "same", "other", None).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    let ids: Vec<String> = error
        .message
        .lines()
        .filter_map(|line| Some(line.strip_prefix("match ")?.split(' ').next()?.to_owned()))
        .collect();
    assert_eq!((ids.len(), ids[0].len()), (2, 8), "{error}");
    assert!(tree.files.edit("twice", "same", "other", Some("00000000")).is_err());
    tree.files.edit("twice", "same", "other", Some(&ids[1])).unwrap();
    assert_eq!(tree.files.read("twice", Lines::All).unwrap(), "a\nsame\nb\nother\nc\n");
    assert!(tree.files.edit("twice", "missing", "x", None).unwrap_err().message.contains("is not in twice"));
    assert!(tree.files.edit("twice", "", "x", None).is_err());
}

proptest! {
    #[test]
    fn no_path_whatever_leads_out(path in "(\\.\\.|\\.|/|a|\\.git|workdir|outside|up){0,8}") {
        let tree = tree();
        symlink("..", tree.top().join("up")).unwrap();
        let _ = tree.files.write(&path, b"x");
        let _ = tree.files.delete(&path);
        prop_assert_eq!(tree.outside(), "untouched");
        prop_assert_eq!(fs::read_to_string(tree.top().join(".git")).unwrap(), "gitdir: elsewhere");
    }
}
