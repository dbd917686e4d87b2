//! Is it running, and what now?

mod plan;
mod truth;

pub use plan::{Adoptable, Bridge, Facts, Memory, Plan, PlanError, Planner};
pub use truth::{CrashLoop, StartFailure, Truth};
