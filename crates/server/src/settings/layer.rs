//! What flags, environment and file may say: one field for each setting, under the same name.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args};
use serde::Deserialize;

use super::gateway::McpAuth;
use super::{LogFormat, any_path, hosting};

/// What one source says. What it does not say is left to the next.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Address to listen on; port 0 picks a free one [default: 127.0.0.1:7070]
    #[arg(long, env = "COFER_LISTEN", value_name = "HOST:PORT")]
    pub listen: Option<String>,

    /// Directory for the database, keys and tokens [default: ~/.local/share/cofer]
    #[arg(long, env = "COFER_DATA_DIR", value_name = "DIR", value_parser = any_path())]
    pub data_dir: Option<PathBuf>,

    /// `sqlite:PATH` or `postgres://USER:PASSWORD@HOST/DATABASE` [default: a SQLite file in the data directory]
    #[arg(long, env = "COFER_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub database: Option<String>,

    /// TOML file with settings, keys named as the flags with `_` for `-`
    #[arg(long, env = "COFER_CONFIG", value_name = "FILE", value_parser = any_path())]
    #[serde(skip)]
    pub config: Option<PathBuf>,

    /// Retry a database that cannot be reached at start, instead of giving up
    #[arg(long, env = "COFER_WAIT_FOR_DATABASE", action = ArgAction::Set, num_args = 0..=1, value_parser = BoolishValueParser::new(), default_missing_value = "true", value_name = "BOOL")]
    pub wait_for_database: Option<bool>,

    /// A proxy in front ends TLS and sets X-Forwarded-For
    #[arg(long, env = "COFER_BEHIND_PROXY", action = ArgAction::Set, num_args = 0..=1, value_parser = BoolishValueParser::new(), default_missing_value = "true", value_name = "BOOL")]
    pub behind_proxy: Option<bool>,

    /// Certificate chain (PEM) to serve TLS with
    #[arg(long, env = "COFER_TLS_CERT", value_name = "FILE", value_parser = any_path())]
    pub tls_cert: Option<PathBuf>,

    /// Its private key (PEM)
    #[arg(long, env = "COFER_TLS_KEY", value_name = "FILE", value_parser = any_path())]
    pub tls_key: Option<PathBuf>,

    /// How log lines look [default: text]
    #[arg(long, env = "COFER_LOG_FORMAT", value_name = "FORMAT")]
    pub log_format: Option<LogFormat>,

    /// What is logged, such as `debug` or `info,cofer_store=trace` [default: info]
    #[arg(long, env = "COFER_LOG", value_name = "FILTER")]
    pub log: Option<String>,

    /// Where Docker is, such as `unix:///run/docker.sock` [default: `DOCKER_HOST`, then the usual sockets]
    #[arg(long, env = "COFER_DOCKER_HOST", value_name = "URL")]
    pub docker_host: Option<String>,

    /// Where Podman is [default: `CONTAINER_HOST`, then the usual sockets]
    #[arg(long, env = "COFER_PODMAN_HOST", value_name = "URL")]
    pub podman_host: Option<String>,

    /// Serve /metrics without a token
    #[arg(long, env = "COFER_OPEN_METRICS", action = ArgAction::Set, num_args = 0..=1, value_parser = BoolishValueParser::new(), default_missing_value = "true", value_name = "BOOL")]
    pub open_metrics: Option<bool>,

    /// Serve /api/openapi.json without a token
    #[arg(long, env = "COFER_OPEN_OPENAPI", action = ArgAction::Set, num_args = 0..=1, value_parser = BoolishValueParser::new(), default_missing_value = "true", value_name = "BOOL")]
    pub open_openapi: Option<bool>,

    /// Largest request body taken [default: 16777216]
    #[arg(long, env = "COFER_BODY_BYTES_MAX", value_name = "BYTES")]
    pub body_bytes_max: Option<usize>,

    /// How long a client may take to send a request's head, or to ask again on an open connection [default: 10000]
    #[arg(long, env = "COFER_HEADER_TIMEOUT_MS", value_name = "MS")]
    pub header_timeout_ms: Option<u64>,

    /// How long a client may take to send a request's body [default: 30000]
    #[arg(long, env = "COFER_BODY_TIMEOUT_MS", value_name = "MS")]
    pub body_timeout_ms: Option<u64>,

    /// Connections open at once; more wait to be accepted [default: 1024]
    #[arg(long, env = "COFER_CONNECTIONS_MAX", value_name = "N")]
    pub connections_max: Option<usize>,

    /// Requests answered at once; more are refused with 503 [default: 512]
    #[arg(long, env = "COFER_REQUESTS_MAX", value_name = "N")]
    pub requests_max: Option<usize>,

    /// How long requests in flight may take to finish at the end [default: 30000]
    #[arg(long, env = "COFER_DRAIN_MS", value_name = "MS")]
    pub drain_ms: Option<u64>,

    /// Who may use the MCP endpoint: `token`, or `none` on loopback [default: token]
    #[arg(long, env = "COFER_MCP_AUTH", value_name = "WHO")]
    pub mcp_auth: Option<McpAuth>,

    /// A name under which clients may address the MCP endpoint, beside this machine's own; may be repeated
    #[arg(long, env = "COFER_ALLOWED_HOSTS", value_name = "HOST", value_delimiter = ',')]
    #[serde(default)]
    pub allowed_hosts: Vec<String>,

    /// A directory whose git repositories may be made environments of, as tools of every project; may be repeated [default: none, and no such tools]
    #[arg(long, env = "COFER_ENVIRONMENT_SOURCES", value_name = "DIR", value_delimiter = ',')]
    #[serde(default)]
    pub environment_sources: Vec<PathBuf>,

    /// Offer and show environments also where others than this machine can reach Cofer
    #[arg(long, env = "COFER_EXPOSE_ENVIRONMENTS", action = ArgAction::Set, num_args = 0..=1, value_parser = BoolishValueParser::new(), default_missing_value = "true", value_name = "BOOL")]
    pub expose_environments: Option<bool>,

    /// Address at which the world finds this server, such as `https://cofer.example.com` [default: where it listens]
    #[arg(long, env = "COFER_PUBLIC_URL", value_name = "URL")]
    pub public_url: Option<String>,

    /// Issuer whose tokens (JWT) the MCP endpoint takes beside Cofer's own
    #[arg(long, env = "COFER_OAUTH_ISSUER", value_name = "URL")]
    pub oauth_issuer: Option<String>,

    /// Whom its tokens must be for [default: the address of the endpoint]
    #[arg(long, env = "COFER_OAUTH_AUDIENCE", value_name = "AUDIENCE")]
    pub oauth_audience: Option<String>,

    /// What a scope of its tokens means here, such as `mcp:use=tools:call`; may be repeated
    #[arg(long, env = "COFER_OAUTH_SCOPES", value_name = "THEIRS=OURS", value_delimiter = ',')]
    #[serde(default)]
    pub oauth_scopes: Vec<String>,

    /// File of servers to start with this one, as desktop clients have it: `{"mcpServers": {…}}`
    #[arg(long, env = "COFER_SERVERS", value_name = "FILE", value_parser = any_path())]
    pub servers: Option<PathBuf>,

    /// Tools that Cofer answers itself.
    #[arg(skip)]
    pub native_tools: Option<Vec<serde_json::Value>>,

    /// How long connecting to a server may take [default: 30000]
    #[arg(long, env = "COFER_CONNECT_TIMEOUT_MS", value_name = "MS")]
    pub connect_timeout_ms: Option<u64>,

    /// How long a tool may take to answer [default: 60000]
    #[arg(long, env = "COFER_CALL_TIMEOUT_MS", value_name = "MS")]
    pub call_timeout_ms: Option<u64>,

    /// How long a server that could not be reached three times is left alone [default: 60000]
    #[arg(long, env = "COFER_COOL_DOWN_MS", value_name = "MS")]
    pub cool_down_ms: Option<u64>,

    /// After how long without use a connection to a server is closed [default: 600000]
    #[arg(long, env = "COFER_CONNECTION_IDLE_MS", value_name = "MS")]
    pub connection_idle_ms: Option<u64>,

    /// After how long without use an MCP client's session ends [default: 1800000]
    #[arg(long, env = "COFER_SESSION_IDLE_MS", value_name = "MS")]
    pub session_idle_ms: Option<u64>,

    /// Where the model's API is [default: <https://api.anthropic.com>]
    #[arg(long, env = "ANTHROPIC_BASE_URL", value_name = "URL")]
    pub anthropic_base_url: Option<String>,

    /// Model of chats that name none [default: claude-sonnet-4-5]
    #[arg(long, env = "COFER_AGENT_MODEL", value_name = "MODEL")]
    pub agent_model: Option<String>,

    /// How often the model may answer in one turn of a chat [default: 50]
    #[arg(long, env = "COFER_AGENT_MAX_STEPS", value_name = "N")]
    pub agent_max_steps: Option<u64>,

    /// How many tokens, of all kinds, one turn may use [default: 2000000]
    #[arg(long, env = "COFER_AGENT_MAX_TOKENS", value_name = "N")]
    pub agent_max_tokens: Option<u64>,

    /// How long one turn may take [default: 1800000]
    #[arg(long, env = "COFER_AGENT_MAX_TIME_MS", value_name = "MS")]
    pub agent_max_time_ms: Option<u64>,

    /// Runs under way at once; more are refused with 429 [default: 256]
    #[arg(long, env = "COFER_AGENT_RUNS_MAX", value_name = "N")]
    pub agent_runs_max: Option<usize>,

    /// How much of a tool's result the model is shown at once [default: 65536]
    #[arg(long, env = "COFER_AGENT_RESULT_BYTES_MAX", value_name = "BYTES")]
    pub agent_result_bytes_max: Option<usize>,

    /// How long a person has to allow a call; then the answer is no [default: 300000]
    #[arg(long, env = "COFER_APPROVAL_TIMEOUT_MS", value_name = "MS")]
    pub approval_timeout_ms: Option<u64>,

    /// After how many days runs and calls are forgotten [default: never]
    #[arg(long, env = "COFER_KEEP_RUNS_DAYS", value_name = "DAYS")]
    pub keep_runs_days: Option<u64>,

    /// Host MCP servers; `false` answers 503 on those routes [default: true]
    #[arg(long, env = "ENABLE_AGENT_WORKSPACES", action = ArgAction::Set, num_args = 0..=1, value_parser = BoolishValueParser::new(), default_missing_value = "true", value_name = "BOOL")]
    pub enable_agent_workspaces: Option<bool>,

    /// What this Cofer's containers and volumes are marked with, where several share an engine [default: made once]
    #[arg(long, env = "COFER_INSTANCE", value_name = "NAME")]
    pub instance: Option<String>,

    /// Provider that is tried first for servers that ask for none [default: gvisor]
    #[arg(long, env = "WORKSPACE_DEFAULT_PROVIDER", value_name = "PROVIDER")]
    pub default_provider: Option<String>,

    /// Refuse to run servers in plain containers
    #[arg(long, env = "COFER_REQUIRE_SANDBOX", action = ArgAction::Set, num_args = 0..=1, value_parser = BoolishValueParser::new(), default_missing_value = "true", value_name = "BOOL")]
    pub require_sandbox: Option<bool>,

    /// Whom servers reach that say nothing of it: none, isolated or egress [default: egress]
    #[arg(long, env = "COFER_DEFAULT_NETWORK", value_name = "MODE")]
    pub default_network: Option<String>,

    /// The engine's network for servers with egress [default: the engine's own]
    #[arg(long, env = "WORKSPACE_NETWORK_NAME", value_name = "NAME")]
    pub network_name: Option<String>,

    /// Longest message taken from a hosted server [default: 16777216]
    #[arg(long, env = "COFER_MAX_MESSAGE_BYTES", value_name = "BYTES")]
    pub max_message_bytes: Option<usize>,

    /// Calls that may wait for one hosted server; more are refused with 429 [default: 256]
    #[arg(long, env = "COFER_CALL_QUEUE_MAX", value_name = "N")]
    pub call_queue_max: Option<usize>,

    /// How long hosted servers may take to end at the end, before SIGKILL [default: 30000]
    #[arg(long, env = "COFER_STOP_GRACE_MS", value_name = "MS")]
    pub stop_grace_ms: Option<u64>,

    /// Image that `--npx` images are made from [default: node:22-slim]
    #[arg(long, env = "COFER_NPX_BASE_IMAGE", value_name = "IMAGE")]
    pub npx_base_image: Option<String>,

    /// Image that `--uvx` images are made from [default: python:3.13-slim]
    #[arg(long, env = "COFER_UVX_BASE_IMAGE", value_name = "IMAGE")]
    pub uvx_base_image: Option<String>,

    /// In the file only: when a server that keeps crashing is given a rest.
    #[arg(skip)]
    pub crash_loop: Option<hosting::CrashLoopLayer>,
}
