//! What people call things, and the rules a name must keep.
//!
//! A [`ProjectName`] and a [`ServerName`] stand in addresses, so they are short and plain. A [`SecretName`] stands in `${NAME}`, so it
//! is an identifier. A [`Label`] is for reading only, so nearly anything goes that one can see.

use std::fmt;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub const PROJECT_NAME_CHARS_MAX: usize = 63;
pub const SERVER_NAME_CHARS_MAX: usize = 63;
pub const SECRET_NAME_CHARS_MAX: usize = 128;
pub const LABEL_CHARS_MAX: usize = 128;
/// The server that tools of Cofer's own are said to be on.
pub const NATIVE_SERVER: &str = "native";

/// Why a name was not taken. The text says what would be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    #[error(
        "a project name is 1 to {PROJECT_NAME_CHARS_MAX} letters, digits, '-', '_' or '.', the first a letter or digit"
    )]
    Project,
    #[error(
        "a server name is 1 to {SERVER_NAME_CHARS_MAX} letters, digits, '-', '_' or '.', the first a letter or digit"
    )]
    Server,
    #[error("`{NATIVE_SERVER}` is where Cofer's own tools are; choose another name")]
    Reserved,
    #[error("a name must not read as a UUID: it could be mistaken for an id")]
    ReadsAsId,
    #[error("a secret name is 1 to {SECRET_NAME_CHARS_MAX} letters, digits or '_', the first not a digit")]
    Secret,
    #[error(
        "a name is 1 to {LABEL_CHARS_MAX} characters, none of them a control character, the first not a space"
    )]
    Label,
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $check:expr, $chars_max:expr, $pattern:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadName;

            fn try_from(text: String) -> Result<Self, BadName> {
                let check: fn(&str) -> Result<(), BadName> = $check;
                check(&text)?;
                Ok(Self(text))
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl utoipa::ToSchema for $name {}

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                let text = utoipa::openapi::ObjectBuilder::new().schema_type(utoipa::openapi::Type::String);
                text.min_length(Some(1)).max_length(Some($chars_max)).pattern(Some($pattern)).into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type! {
    /// A project's name, which may stand in an address instead of its id.
    ProjectName, check_project_name, PROJECT_NAME_CHARS_MAX, "^[A-Za-z0-9][A-Za-z0-9._-]*$"
}
name_type! {
    /// A server's name, unique in its project. It may stand in an address, in front of a tool's name, and in a volume's.
    ServerName, check_server_name, SERVER_NAME_CHARS_MAX, "^[A-Za-z0-9][A-Za-z0-9._-]*$"
}
name_type! {
    /// A secret's name, as written in `${NAME}`.
    SecretName, check_secret_name, SECRET_NAME_CHARS_MAX, "^[A-Za-z_][A-Za-z0-9_]*$"
}
name_type! {
    /// A name for people, such as a token's.
    Label, check_label, LABEL_CHARS_MAX, r"^[^\x00-\x20\x7f-\xa0][^\x00-\x1f\x7f-\x9f]*$"
}

fn check_project_name(text: &str) -> Result<(), BadName> {
    check_plain(text, PROJECT_NAME_CHARS_MAX, BadName::Project)
}

fn check_server_name(text: &str) -> Result<(), BadName> {
    if text == NATIVE_SERVER {
        return Err(BadName::Reserved);
    }
    check_plain(text, SERVER_NAME_CHARS_MAX, BadName::Server)
}

fn check_plain(text: &str, chars_max: usize, otherwise: BadName) -> Result<(), BadName> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let fits = text.len() <= chars_max && text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !fits || !text.chars().all(plain) {
        return Err(otherwise);
    }
    refuse_id(text)
}

fn check_secret_name(text: &str) -> Result<(), BadName> {
    let identifier = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if starts_well && text.len() <= SECRET_NAME_CHARS_MAX && text.chars().all(identifier) {
        Ok(())
    } else {
        Err(BadName::Secret)
    }
}

fn check_label(text: &str) -> Result<(), BadName> {
    let fits = (1..=LABEL_CHARS_MAX).contains(&text.chars().count()) && !text.starts_with([' ', '\u{a0}']);
    if !fits || text.chars().any(char::is_control) {
        return Err(BadName::Label);
    }
    refuse_id(text)
}

fn refuse_id(text: &str) -> Result<(), BadName> {
    Uuid::try_parse(text).map_or(Ok(()), |_| Err(BadName::ReadsAsId))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UUID: &str = "550e8400-e29b-41d4-a716-446655440000";

    #[test]
    fn project_names_are_what_fits_in_an_address() {
        for good in ["default", "a", "7", "my-project", "v1.2_x", &"n".repeat(PROJECT_NAME_CHARS_MAX)] {
            assert!(ProjectName::try_from(good.to_owned()).is_ok(), "{good}");
        }
        for bad in ["", "a/b", "..", "-a", "a b", "ä", "a\0", "a\n", &"n".repeat(10_000)] {
            assert_eq!(ProjectName::try_from(bad.to_owned()), Err(BadName::Project), "{bad:?}");
        }
        assert_eq!(ProjectName::try_from(UUID.to_owned()), Err(BadName::ReadsAsId));
    }

    #[test]
    fn no_server_is_called_as_our_own() {
        assert_eq!(ServerName::try_from(NATIVE_SERVER.to_owned()), Err(BadName::Reserved));
        assert!(ServerName::try_from("Native".to_owned()).is_ok());
    }

    #[test]
    fn secret_names_are_identifiers() {
        for good in ["API_KEY", "_x", "k9"] {
            assert!(SecretName::try_from(good.to_owned()).is_ok(), "{good}");
        }
        for bad in ["", "9k", "API-KEY", "a b", "$X", "A\n", &"N".repeat(10_000)] {
            assert_eq!(SecretName::try_from(bad.to_owned()), Err(BadName::Secret), "{bad:?}");
        }
    }

    #[test]
    fn labels_are_anything_one_can_see() {
        assert!(Label::try_from("Ada's laptop / home".to_owned()).is_ok());
        for bad in ["", "  ", "bell\u{7}", &"l".repeat(10_000)] {
            assert_eq!(Label::try_from(bad.to_owned()), Err(BadName::Label), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn no_accepted_name_can_be_taken_for_an_id_or_leave_its_place_in_an_address(text in ".{0,70}") {
            if let Ok(name) = ProjectName::try_from(text) {
                prop_assert!(Uuid::try_parse(name.as_str()).is_err());
                prop_assert!(!name.as_str().contains(['/', '?', '#', '%', ' ']));
                prop_assert!(!name.as_str().starts_with('.'));
            }
        }
    }
}
