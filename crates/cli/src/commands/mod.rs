//! One file a command.

use serde_json::{Map, Value};

use crate::exit::Failure;
use crate::output::{Format, print_line};

pub mod call;
pub mod calls;
pub mod chat;
pub mod client;
pub mod completions;
pub mod declared;
pub mod doctor;
pub mod env;
mod external;
pub mod project;
pub mod provider;
pub mod secret;
pub mod serve;
pub mod server;
pub mod stdio;
pub mod token;
pub mod tools;
pub mod version;
pub mod volume;

/// An object of what was given.
fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let given = fields.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(given.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}

/// Removes one after the other until one cannot be, and says of each what was `done`. A line that cannot be written
/// is told at the end: half of the work for want of a place to report it would help nobody.
async fn remove_each(
    names: &[String],
    remove: impl AsyncFn(&str) -> Result<Value, Failure>,
    format: Format,
    done: impl Fn(&str) -> String,
) -> Result<(), Failure> {
    let mut said = Ok(());
    for name in names {
        remove(name).await?;
        if format == Format::Text {
            said = said.and(print_line(&done(name)));
        }
    }
    said
}
