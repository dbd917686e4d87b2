//! What a sandbox uses now, as the engine's statistics tell it.

use bollard::models::{ContainerMemoryStats, ContainerStatsResponse};
use bollard::query_parameters::StatsOptionsBuilder;
use futures_util::StreamExt as _;

use crate::Usage;
use crate::connection::{ANSWER_MAX, EngineError, Open};

pub(crate) async fn ask(open: &Open, id: &str) -> Result<Usage, EngineError> {
    let once = StatsOptionsBuilder::new().stream(false).one_shot(true).build();
    let first = async { open.client.stats(id, Some(once)).next().await.transpose() };
    let stats = open.within(ANSWER_MAX, first).await?;
    Ok(stats.map(read).unwrap_or_default())
}

fn read(stats: ContainerStatsResponse) -> Usage {
    let cpu = stats.cpu_stats.and_then(|cpu| cpu.cpu_usage).and_then(|usage| usage.total_usage);
    let memory = stats.memory_stats.unwrap_or_default();
    Usage {
        cpu_nanos: cpu.unwrap_or_default(),
        memory_bytes: without_page_cache(&memory),
        memory_limit_bytes: memory.limit.unwrap_or_default(),
        pids: stats.pids_stats.and_then(|pids| pids.current).unwrap_or_default(),
        disk_bytes: None,
    }
}

/// Cache that the kernel would give up at once is nobody's need. Control groups of the first version count it for the whole
/// tree under another name than those of the second; Podman does not tell of it at all.
fn without_page_cache(memory: &ContainerMemoryStats) -> u64 {
    let usage = memory.usage.unwrap_or_default();
    let stats = memory.stats.as_ref();
    let cache =
        stats.and_then(|stats| stats.get("total_inactive_file").or_else(|| stats.get("inactive_file")));
    usage.saturating_sub(cache.copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn memory_is_told_without_the_page_cache_in_both_versions_of_control_groups() {
        let memory = |stats: &[(&str, u64)]| ContainerMemoryStats {
            usage: Some(1000),
            stats: Some(
                stats.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect::<HashMap<_, _>>(),
            ),
            ..Default::default()
        };
        assert_eq!(without_page_cache(&memory(&[("total_inactive_file", 300), ("inactive_file", 1)])), 700);
        assert_eq!(without_page_cache(&memory(&[("inactive_file", 400)])), 600);
        assert_eq!(without_page_cache(&memory(&[("inactive_file", 4000)])), 0);
        assert_eq!(without_page_cache(&ContainerMemoryStats { usage: Some(5), ..Default::default() }), 5);
    }
}
