//! The settings of the gateway, decided.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use cofer_gateway::{BreakerRules, GatewayRules, SlotRules};
use serde::Deserialize;
use serde_json::Value;

use super::{Layer, SettingsError};

/// Who may use the MCP endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum McpAuth {
    /// Whoever has a token with `tools:call`.
    #[default]
    Token,
    /// Anybody on this machine.
    None,
}

/// What holds for every project's servers and clients.
#[derive(Clone, Debug)]
pub struct GatewaySettings {
    pub rules: GatewayRules,
    pub mcp_auth: McpAuth,
    /// Names under which clients may address the MCP endpoint, beside those of this machine.
    pub allowed_hosts: Vec<String>,
    /// Servers that are started with this one, in the form of desktop clients.
    pub servers: Option<PathBuf>,
    /// `[[native_tools]]` of the file, as they were written.
    pub native_tools: Vec<Value>,
}

impl GatewaySettings {
    pub(super) fn decide(flags: &Layer, file: &Layer, listen: &str) -> Result<Self, SettingsError> {
        let mcp_auth = flags.mcp_auth.or(file.mcp_auth).unwrap_or_default();
        if mcp_auth == McpAuth::None && !is_loopback(listen) {
            return Err(SettingsError::OpenToStrangers);
        }
        let ms = |flag: Option<u64>, file: Option<u64>, default: Duration| {
            flag.or(file).map_or(default, Duration::from_millis)
        };
        let rules = GatewayRules::default();
        let (slots, breaker) = (rules.slots, rules.slots.breaker);
        let breaker = BreakerRules {
            cool_down: ms(flags.cool_down_ms, file.cool_down_ms, breaker.cool_down),
            ..breaker
        };
        let slots = SlotRules {
            connect_timeout: ms(flags.connect_timeout_ms, file.connect_timeout_ms, slots.connect_timeout),
            idle_after: ms(flags.connection_idle_ms, file.connection_idle_ms, slots.idle_after),
            breaker,
        };
        let rules = GatewayRules {
            slots,
            call_timeout: ms(flags.call_timeout_ms, file.call_timeout_ms, rules.call_timeout),
            session_idle: ms(flags.session_idle_ms, file.session_idle_ms, rules.session_idle),
            ..rules
        };
        let allowed_hosts = if flags.allowed_hosts.is_empty() {
            file.allowed_hosts.clone()
        } else {
            flags.allowed_hosts.clone()
        };
        let servers = super::path(flags.servers.clone(), file.servers.clone());
        let native_tools = file.native_tools.clone().unwrap_or_default();
        Ok(Self { rules, mcp_auth, allowed_hosts, servers, native_tools })
    }
}

pub(super) fn is_loopback(listen: &str) -> bool {
    is_this_machine(listen.rsplit_once(':').map_or(listen, |(host, _)| host).trim_matches(['[', ']']))
}

/// Whether this name or number leads nobody but this machine to us.
pub(super) fn is_this_machine(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
