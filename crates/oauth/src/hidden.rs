//! A token or a password: readable for whoever asks for it by name, and for nobody who prints.
//!
//! It is written out only into what is sealed next ([`crate::Grant`]), which is why it can be serialised where other secrets cannot.

use std::fmt;

use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hidden(String);

impl Hidden {
    pub fn new(clear: impl Into<String>) -> Self {
        Self(clear.into())
    }

    pub fn clear(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden")
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}
