//! What of an environment is git's: the source repository, the bare one beside it, and a worktree for each environment.
//!
//! ```text
//!   source/.git                 the user's; all objects are kept here, so nothing is ever copied
//!     refs/remotes/cofer/<id>   where the user finds an environment's work
//!     refs/notes/cofer/<id>     what was run there
//!   source/.cofer/repo.git      bare; borrows the source's objects
//!     refs/heads/cofer/<id>     the environment's branch
//!     worktrees/<id>            index and HEAD of its worktree, out of reach of its container
//!   source/.cofer/worktrees/<id>   the files, mounted into the container
//! ```

mod notes;
mod run;
mod source;
mod takeover;
mod worktree;

pub use notes::{LogEntry, remember};
pub use run::{Git, Said};
pub use source::{Initialised, Source};
pub use takeover::Takeover;
pub use worktree::{Commit, Worktree};
