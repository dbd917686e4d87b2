//! Runs a future to its end from code that cannot await, `Drop` above all, inside a runtime or outside one.

use std::future::Future;
use std::thread;

pub(crate) fn run<T: Send>(future: impl Future<Output = T> + Send) -> T {
    // A thread of its own, because a thread that already runs a runtime must not start another.
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime for one future").block_on(future)
    };
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(output) => output,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
