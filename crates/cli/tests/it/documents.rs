//! What the documents promise is there.

use cofer_model::Kind;

use crate::start;

fn document(name: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    std::fs::read_to_string(format!("{path}{name}")).unwrap()
}

#[tokio::test]
async fn every_setting_is_explained_to_operators() {
    let help = start().cofer(&["serve", "--help"]).await;
    let operating = document("docs/operating.md");
    let words = help.stdout.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'));
    let mut settings: Vec<_> =
        words.filter(|word| word.starts_with("--") || word.starts_with("COFER_")).collect();
    settings.retain(|setting| !["--", "--help", "--json"].contains(setting));
    assert!(settings.len() > 30, "{settings:?}");
    for setting in settings {
        assert!(operating.contains(&format!("`{setting}`")), "{setting} is not in docs/operating.md");
    }
}

#[test]
fn every_kind_of_error_is_explained() {
    let errors = document("docs/errors.md");
    for kind in Kind::ALL {
        assert!(
            errors.contains(&format!("| `{}` |", kind.code())),
            "{} is not in docs/errors.md",
            kind.code()
        );
    }
}

#[test]
fn every_room_is_on_the_map() {
    let map = document("ARCHITECTURE.md");
    for room in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).unwrap() {
        let room = room.unwrap().file_name().into_string().unwrap();
        assert!(map.contains(&format!("| `{room}` |")), "{room} is not in ARCHITECTURE.md");
    }
}
