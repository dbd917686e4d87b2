//! On how many threads does everything run? Half as many as there are processors.
//!
//! The other half is for the servers and the clients on the same machine, whose share of a call is as large as ours. On two processors a call
//! costs a fifth less when it is not handed from one thread to another, and the machine carries more of them (`bench/README.md`). Tokio's own
//! variable, `TOKIO_WORKER_THREADS`, says otherwise where a machine is Cofer's alone.

use std::io;
use std::num::NonZero;

use tokio::runtime::{Builder, Runtime};

pub fn runtime() -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if std::env::var_os("TOKIO_WORKER_THREADS").is_none() {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        builder.worker_threads(processors.div_ceil(2));
    }
    builder.enable_all().build()
}
