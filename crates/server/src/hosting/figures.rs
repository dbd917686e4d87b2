//! Hosted servers in figures, for Prometheus: one line a server and figure, made when somebody asks.
//!
//! These are not kept by the recorder: a server that is gone leaves no figure behind, and nothing is asked of an engine that
//! nobody wants to know.

use std::fmt::Write;

use cofer_model::{HostedStatus, ProjectId};

use super::{Hosting, ServerStatus};

/// Name, explanation, and how it is read off a status.
type Figure = (&'static str, &'static str, fn(&ServerStatus) -> Option<f64>);

const FIGURES: [Figure; 7] = [
    ("cofer_hosted_up", "1 when the server is ready, else 0", |server| {
        Some(if server.status == HostedStatus::Ready { 1.0 } else { 0.0 })
    }),
    ("cofer_hosted_restarts", "Restarts after crashes since a person last restarted it", |server| {
        Some(approximately(server.restart_count))
    }),
    ("cofer_hosted_crash_loop", "1 while the server is in a crash loop, else 0", |server| {
        Some(if server.crash_loop.active { 1.0 } else { 0.0 })
    }),
    ("cofer_hosted_cpu_percent", "Processor use; 100 is one processor", |server| {
        server.usage.as_ref().map(|usage| usage.cpu_percent)
    }),
    ("cofer_hosted_memory_bytes", "Memory that the server uses", |server| {
        server.usage.as_ref().map(|usage| approximately(usage.memory_bytes))
    }),
    ("cofer_hosted_pids", "Processes and threads of the server", |server| {
        server.usage.as_ref().map(|usage| approximately(usage.pids))
    }),
    ("cofer_hosted_disk_bytes", "Root filesystem and volumes of the server", |server| {
        server.usage.as_ref()?.disk_bytes.map(approximately)
    }),
];

#[expect(clippy::cast_precision_loss, reason = "a figure for a graph")]
fn approximately(count: u64) -> f64 {
    count as f64
}

impl Hosting {
    /// The lines for Prometheus, of the projects that whoever asks may see.
    pub(crate) async fn figures(&self, may_see: impl Fn(ProjectId) -> bool) -> String {
        let mut entries = self.all();
        entries.retain(|entry| may_see(entry.planner.project_id));
        let servers = self.statuses(entries).await;
        let mut page = String::new();
        for (name, explanation, read) in FIGURES {
            if servers.is_empty() {
                break;
            }
            // Writing to memory does not fail.
            let _ = writeln!(page, "# HELP {name} {explanation}\n# TYPE {name} gauge");
            for server in &servers {
                if let Some(value) = read(server) {
                    // Names of projects and servers need no escaping here.
                    let labels = format!("project=\"{}\",server=\"{}\"", server.project, server.name);
                    let _ = writeln!(page, "{name}{{{labels}}} {value}");
                }
            }
        }
        page
    }
}
