//! How does a conversation with a model go on?
//!
//! ```text
//!              ┌────────────────────────── talk: what was said, and what comes next ───────────────────────────┐
//!   run ───────┤  ask ─► Model (claude) ─► answer ─► journal ─► calls, all at once ─► Tools ─► results ─► ask …  │
//!              └───────────┬─────────────────────────────────────────┬──────────────────────────────────────────┘
//!                          └──► Person: text, calls, results,  ◄─────┘ may this be called?
//! ```
//!
//! [`talk`] decides, in plain code, whether the model is asked, tools are called, or it is over; [`run()`] does it. The world is four
//! small traits: [`Model`] answers, [`Tools`] does, [`Journal`] remembers, [`Person`] watches and is asked. An answer is written down before
//! anything it asks for is done, so whatever happens to this process, no call is made twice.

mod api;
pub mod claude;
mod content;
mod names;
mod offer;
mod patterns;
mod rest;
mod retry;
mod run;
mod talk;
#[cfg(test)]
mod tests;

pub use api::{Answer, Hear, Model, ModelError, Question, ToolUse, Trouble};
pub use claude::Claude;
pub use offer::Tool;
pub use patterns::{BadPattern, Patterns};
pub use retry::RetryRules;
pub use run::{
    Asked, Call, Called, Event, Failure, Journal, Outcome, Person, Rules, Said, Tools, Wishes, World, run,
};
pub use talk::{Blocks, Limits, Message, Role, transcript};
