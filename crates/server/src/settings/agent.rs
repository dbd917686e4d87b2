//! The settings of agents, decided.

use std::time::Duration;

use cofer_agent::{Limits, RetryRules, Rules};
use url::Url;

use super::{Layer, SettingsError, text};

const DEFAULT_BASE_URL: &str = "https://api.anthropic.com";
const DEFAULT_MODEL: &str = "claude-sonnet-4-5";
const DEFAULT_RUNS_MAX: usize = 256;
const DAY: Duration = Duration::from_hours(24);

/// What holds for every run.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// Without a slash at the end.
    pub base_url: String,
    pub model: String,
    /// What a turn may use that asks for less or nothing; none may ask for more.
    pub limits: Limits,
    pub rules: Rules,
    pub runs_max: usize,
    /// After which time runs and calls are forgotten.
    pub keep_for: Option<Duration>,
}

impl AgentSettings {
    pub(super) fn decide(flags: &Layer, file: &Layer) -> Result<Self, SettingsError> {
        let given = text(flags.anthropic_base_url.clone(), file.anthropic_base_url.clone());
        let base_url = given.unwrap_or_else(|| DEFAULT_BASE_URL.to_owned());
        if !Url::parse(&base_url).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
        {
            return Err(SettingsError::Address { name: "anthropic_base_url" });
        }
        let number =
            |name: &'static str, flag: Option<u64>, file: Option<u64>, default: u64| match flag.or(file) {
                Some(0) => Err(SettingsError::Zero(name)),
                given => Ok(given.unwrap_or(default)),
            };
        let limits = Limits {
            steps: number("agent_max_steps", flags.agent_max_steps, file.agent_max_steps, 50)?,
            tokens: number("agent_max_tokens", flags.agent_max_tokens, file.agent_max_tokens, 2_000_000)?,
            time: Duration::from_millis(number(
                "agent_max_time_ms",
                flags.agent_max_time_ms,
                file.agent_max_time_ms,
                1_800_000,
            )?),
        };
        let approval_ms = flags.approval_timeout_ms.or(file.approval_timeout_ms).unwrap_or(300_000);
        let rules = Rules {
            retry: RetryRules::default(),
            approval_timeout: Duration::from_millis(approval_ms),
            result_bytes_max: flags
                .agent_result_bytes_max
                .or(file.agent_result_bytes_max)
                .unwrap_or(64 << 10),
        };
        let days = |days: u64| DAY.saturating_mul(u32::try_from(days).unwrap_or(u32::MAX));
        Ok(Self {
            base_url: base_url.trim_end_matches('/').to_owned(),
            model: text(flags.agent_model.clone(), file.agent_model.clone())
                .unwrap_or_else(|| DEFAULT_MODEL.to_owned()),
            limits,
            rules,
            runs_max: flags.agent_runs_max.or(file.agent_runs_max).unwrap_or(DEFAULT_RUNS_MAX),
            keep_for: flags.keep_runs_days.or(file.keep_runs_days).map(days),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_and_no_limit_is_zero() {
        let decide = |layer: &Layer| AgentSettings::decide(layer, &Layer::default());
        let base =
            |url: &str| decide(&Layer { anthropic_base_url: Some(url.to_owned()), ..Layer::default() });
        assert_eq!(base("http://127.0.0.1:9/").unwrap().base_url, "http://127.0.0.1:9");
        assert_eq!(base("").unwrap().base_url, DEFAULT_BASE_URL);
        for wrong in ["api.anthropic.com", "ftp://a", "file:///etc/passwd"] {
            assert!(base(wrong).unwrap_err().to_string().contains("`anthropic_base_url`"), "{wrong}");
        }
        let none = decide(&Layer { agent_max_steps: Some(0), ..Layer::default() });
        assert!(none.unwrap_err().to_string().contains("`agent_max_steps`"));
    }
}
