//! Closed sets of words: the macro that makes one, and the refusal of a word that is none of them.

/// A closed set of words, each written alike in JSON, in the database, in flags and in messages. A word is a token and not a
/// literal, because whoever describes the API looks into the attribute and does not see through a literal of a macro.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:tt),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize, utoipa::ToSchema,
        )]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant),+
        }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::words::UnknownWord;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let found = Self::ALL.iter().copied().find(|word| word.as_str() == text);
                found.ok_or_else(|| $crate::words::UnknownWord::new(text, vec![$($word),+]))
            }
        }
    };
}
pub(crate) use words;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not known here; it is one of {}", known.join(", "))]
pub struct UnknownWord {
    given: String,
    known: Vec<&'static str>,
}

impl UnknownWord {
    pub(crate) fn new(given: &str, known: Vec<&'static str>) -> Self {
        Self { given: given.chars().take(64).collect(), known }
    }
}
