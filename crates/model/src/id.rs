//! What identifies a thing for ever: a UUID in a type of its own, so that a project's id can never be
//! handed in where a token's is meant. Ids are version 7: they sort by the time they were made.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new id that nothing else has.
            pub fn generate() -> Self {
                Self(Uuid::now_v7())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }
    };
}

id_type! {
    /// The identity of a project.
    ProjectId
}
id_type! {
    /// The identity of an access token. Not the token itself, and no help in guessing it.
    TokenId
}

id_type! {
    /// The identity of a server, hosted or external.
    ServerId
}
id_type! {
    /// The identity of a product: a set of servers that came, and goes, together.
    ProductId
}
id_type! {
    /// The identity of an agent's run.
    RunId
}
id_type! {
    /// The identity of one recorded call of a tool.
    CallId
}
id_type! {
    /// The identity of something that was said in a run.
    MessageId
}

/// How a caller points at a thing: by id or by name, whichever is at hand.
///
/// No name can be mistaken for an id, because names that read as a UUID are refused (see [`crate::name`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    Id(Uuid),
    Name(String),
}

impl FromStr for Reference {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Uuid::try_parse(text).map_or_else(|_| Self::Name(text.to_owned()), Self::Id))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.hyphenated().fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl<'de> Deserialize<'de> for Reference {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Ok(reference) = String::deserialize(deserializer)?.parse();
        Ok(reference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_is_an_id_when_it_reads_as_one_and_a_name_otherwise() {
        let id = ProjectId::generate();
        assert_eq!(id.to_string().parse(), Ok(Reference::Id(id.0)));
        assert_eq!("weather".parse(), Ok(Reference::Name("weather".to_owned())));
    }

    #[test]
    fn later_ids_sort_after_earlier_ones() {
        let ids: Vec<_> = std::iter::repeat_with(TokenId::generate).take(1000).collect();
        assert!(ids.is_sorted());
    }
}
