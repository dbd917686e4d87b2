//! What Cofer and a guardian agree on. How a guardian is called, and what its end says.

use std::time::Duration;

/// The part that it plays, before Cofer's process id, the program and the program's arguments.
pub const GUARD: &str = "guard";
/// What it exits with when the program never ran, together with a line on stderr that begins with [`NOT_STARTED`].
pub const NOT_STARTED_CODE: u8 = 125;
pub const NOT_STARTED: &str = "cofer guard: ";
/// How long a tree has to end that was asked to by SIGTERM, or whose Cofer has ended.
pub const GRACE: Duration = Duration::from_secs(5);
