//! Is it running, and what now?
//!
//! One hosted server, from wanted to gone. Intent comes in as a call on [`Supervised`], truth leaves on a `watch`; there is no
//! database here and no list of servers.
//!
//! ```text
//!   Supervised (handle) ── commands ──► driver (one task) ──► Provider, Pump        touches the world
//!        ▲                                │        ▲
//!        └── Truth, logs, calls ──────────┘     machine: step(now, event) → effects  decides, purely
//! ```
//!
//! - `machine`: the rules of its life; `driver` performs what they say
//! - `start`: making a sandbox or taking one over; `errands`: the small questions; `probe`: whether an HTTP server lives
//! - [`Planner`], [`Plan`]: what a start needs, drawn up by whoever knows the configuration
//! - [`LogBook`]: what it said; [`UsageNow`]: what it uses

mod driver;
mod errands;
mod inbox;
mod live;
mod logs;
mod machine;
mod plan;
mod probe;
mod rules;
mod start;
mod supervised;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod truth;
mod usage;

pub use logs::{Diary, LOG_LINE_BYTES_MAX, LogBook, LogLine};
pub use plan::{Adoptable, Bridge, Facts, Memory, Plan, PlanError, Planner};
pub use rules::Rules;
pub use supervised::{CallRefused, History, Supervised};
pub use truth::{CrashLoop, StartFailure, Truth};
pub use usage::UsageNow;
