//! Secrets as they may be shown: by name. A secret's value is a [`secrecy::SecretString`], which has no
//! `Display`, no `Serialize` and a `Debug` that tells nothing, so it cannot be printed by mistake.

use serde::{Deserialize, Serialize};

use crate::{Moment, SecretName};

/// What a list of secrets says of each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SecretEntry {
    pub name: SecretName,
    pub created_at: Moment,
    pub updated_at: Moment,
}

/// Longest value taken, in bytes: a private key or a service account fits, a file does not.
pub const SECRET_BYTES_MAX: usize = 64 << 10;
