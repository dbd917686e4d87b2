//! How fast is it?
//!
//! Every figure is a ratio to a floor that is measured in the same run, in interleaved rounds, so that a busy machine slows both. The
//! floor of a call to a hosted server is an attach to the same container made by hand; the floor of what Cofer adds to a plain child
//! process is a proxy that does nothing but match ids.
//!
//! ```text
//!   cofer-bench call    POST /:id/call        beside an attach by hand, for each engine
//!   cofer-bench proxy   POST /:id/call        beside a bare proxy, both before a plain child process
//!   cofer-bench gateway POST /mcp             beside a bare proxy, and what sessions and servers weigh (`--calls`: not those)
//!   cofer-bench eras    a call that stands alone beside one in a session, and what waiting calls weigh
//!   cofer-bench chat    what a chat costs beside a model that answers at once: a tool step, memory, the first event
//!   cofer-bench environments   commands, commits and new environments beside the engine's and git's own
//!   cofer-bench peers   POST /mcp             beside what others offer, where `bench/peers` has installed them
//!   cofer-bench fleet   twenty at boot beside twenty `docker run`, memory for each, crash to ready
//! ```
//!
//! `serve-processes` and `raw-proxy` are the two ends of `proxy`, each a process of its own.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a measurement that cannot be made ends with its reason"
)]

mod attach;
mod call;
mod chat;
mod client;
mod environments;
mod eras;
mod figures;
mod fleet;
mod gateway;
mod peers;
mod process;
mod proxy;
mod raw_proxy;
mod served;

use clap::{Parser, Subcommand};

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Call,
    Proxy,
    Fleet,
    Gateway {
        /// Nothing but calls.
        #[arg(long)]
        calls: bool,
    },
    Peers,
    Eras,
    Chat,
    Environments,
    #[command(hide = true)]
    ServeProcesses {
        data_dir: std::path::PathBuf,
    },
    #[command(hide = true)]
    RawProxy,
}

fn main() {
    // An error says that it was told already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let what = Arguments::parse().what;
    let runtime = match what {
        // As the program that it stands for.
        What::ServeProcesses { .. } => cofer_server::runtime(),
        _ => tokio::runtime::Builder::new_multi_thread().enable_all().build(),
    };
    runtime.expect("a runtime").block_on(async {
        match what {
            What::Call => call::measure().await,
            What::Proxy => proxy::measure().await,
            What::Fleet => fleet::measure().await,
            What::Gateway { calls: true } => gateway::measure_calls().await,
            What::Gateway { calls: false } => gateway::measure().await,
            What::Peers => peers::measure().await,
            What::Eras => eras::measure().await,
            What::Chat => chat::measure().await,
            What::Environments => environments::measure().await,
            What::ServeProcesses { data_dir } => process::serve(data_dir).await,
            What::RawProxy => raw_proxy::serve().await,
        }
    });
}
