//! Every setting, in one place.
//!
//! [`Layer`] names each setting once: its flag, its environment variable, its key in the file and its explanation
//! are all on that field. A flag beats the environment (clap sees to that), both beat the file, the file beats the
//! default, and [`Settings`] is what comes out. To add a setting, add a field to `Layer` and one to `Settings`.
//!
//! A few values come by environment only, because a command line is visible to everybody on the machine: see
//! [`Confidential`].

mod agent;
mod environments;
mod gateway;
mod hosting;
mod oauth;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{BoolishValueParser, OsStringValueParser, TypedValueParser};
use clap::{ArgAction, Args, ValueEnum};
use cofer_model::{Kind, SecretName, UnknownWord};
use cofer_store::{BadMasterKey, DatabaseUrl, MasterKey, OpenError};
use secrecy::SecretString;
use serde::Deserialize;

pub use agent::AgentSettings;
pub use environments::EnvironmentSettings;
pub use gateway::{GatewaySettings, McpAuth};
pub use hosting::{CrashLoopSettings, HostingSettings};
pub use oauth::OauthSettings;

const DEFAULT_LISTEN: &str = "127.0.0.1:7070";
/// sqlx's own lines repeat what our errors say.
const DEFAULT_LOG: &str = "info,sqlx=off,sqlx_core=off";
const DEFAULT_BODY_BYTES_MAX: usize = 16 << 20;
const DEFAULT_HEADER_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_BODY_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_CONNECTIONS_MAX: usize = 1024;
const DEFAULT_REQUESTS_MAX: usize = 512;
const DEFAULT_DRAIN: Duration = Duration::from_secs(30);
/// How far a misspelt key may be from a known one for that one to be suggested.
const SUGGESTION_SIMILARITY_MIN: f64 = 0.6;

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

    /// Offer environments also where others than this machine can reach them
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What may only come by environment.
#[derive(Debug, Default)]
pub struct Confidential {
    /// `COFER_ADMIN_TOKEN`: the admin token, instead of one made at first start.
    pub admin_token: Option<SecretString>,
    /// `COFER_MASTER_KEY`: the key that seals secrets, instead of the key file.
    pub master_key: Option<MasterKey>,
    /// `COFER_MASTER_KEY_PREVIOUS`: the key before it. Secrets sealed with that are sealed anew at start.
    pub master_key_previous: Option<MasterKey>,
    /// Secrets that the project `default` is to begin with.
    pub secrets: Vec<(SecretName, SecretString)>,
    /// `ANTHROPIC_API_KEY`: for projects that have no secret of that name.
    pub model_key: Option<SecretString>,
    /// All of them as they were written, and the database's password: nothing of this may ever be logged.
    pub never_to_be_logged: Vec<SecretString>,
}

impl Confidential {
    /// Reads from whatever environment it is handed; an empty value is none.
    pub fn read(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, SettingsError> {
        let mut seen = Vec::new();
        let mut secret = |name: &'static str| {
            let Some(value) = variable(name).filter(|value| !value.is_empty()) else { return Ok(None) };
            let text = value.into_string().map_err(|_| SettingsError::NotText { name })?;
            seen.push(SecretString::from(text.as_str()));
            Ok(Some(SecretString::from(text)))
        };
        let admin_token = secret("COFER_ADMIN_TOKEN")?;
        let model_key = secret("ANTHROPIC_API_KEY")?;
        let mut key = |name: &'static str| {
            let parse =
                |text| MasterKey::parse(&text).map_err(|source| SettingsError::MasterKey { name, source });
            secret(name)?.map(parse).transpose()
        };
        let (master_key, master_key_previous) = (key("COFER_MASTER_KEY")?, key("COFER_MASTER_KEY_PREVIOUS")?);
        Ok(Self {
            admin_token,
            master_key,
            master_key_previous,
            secrets: Vec::new(),
            model_key,
            never_to_be_logged: seen,
        })
    }

    fn hide_password_of(&mut self, database: &str) {
        let password =
            url::Url::parse(database).ok().and_then(|url| Some(SecretString::from(url.password()?)));
        self.never_to_be_logged.extend(password);
    }
}

/// All settings, decided.
#[derive(Debug)]
pub struct Settings {
    pub listen: String,
    pub data_dir: PathBuf,
    pub database: DatabaseUrl,
    pub database_at_start: DatabaseAtStart,
    pub behind_proxy: bool,
    pub tls: Option<TlsFiles>,
    pub log_format: LogFormat,
    pub log: String,
    pub docker_host: Option<String>,
    pub podman_host: Option<String>,
    pub open_metrics: bool,
    pub open_openapi: bool,
    pub body_bytes_max: usize,
    pub header_timeout: Duration,
    pub body_timeout: Duration,
    pub connections_max: usize,
    pub requests_max: usize,
    pub drain: Duration,
    pub hosting: HostingSettings,
    pub gateway: GatewaySettings,
    pub environments: EnvironmentSettings,
    pub oauth: OauthSettings,
    pub agent: AgentSettings,
    pub confidential: Confidential,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseAtStart {
    MustAnswer,
    WaitFor,
}

#[derive(Clone, Debug)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("the settings file {} cannot be read", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the settings file {} is not valid TOML", path.display())]
    Malformed {
        path: PathBuf,
        #[source]
        source: Box<toml::de::Error>,
    },
    #[error("the settings file {} has an unknown key `{key}`{}", path.display(), Suggestion(*suggestion))]
    UnknownKey { path: PathBuf, key: String, suggestion: Option<&'static str> },
    #[error("the environment variable {name} is not text; set it again")]
    NotText { name: &'static str },
    #[error("the setting `{name}` is too large; it is at most {max}")]
    TooLarge { name: &'static str, max: usize },
    #[error("the environment variable {name} is not a master key")]
    MasterKey {
        name: &'static str,
        #[source]
        source: BadMasterKey,
    },
    #[error("the setting `database` is wrong")]
    Database {
        #[source]
        source: OpenError,
    },
    #[error("the setting `{0}` must not be zero")]
    Zero(&'static str),
    #[error(
        "the setting `instance` is 1 to 63 letters, digits, '-', '_' or '.', the first a letter or digit"
    )]
    Instance,
    #[error("the setting `{name}` is wrong")]
    Word {
        name: &'static str,
        #[source]
        source: UnknownWord,
    },
    #[error(
        "`mcp_auth = none` serves the MCP endpoint to anybody, so it is for loopback only; listen on 127.0.0.1, or use tokens"
    )]
    OpenToStrangers,
    #[error(
        "the setting `{name}` is not an address such as https://cofer.example.com; plain http is for this machine alone"
    )]
    Address { name: &'static str },
    #[error(
        "the setting `oauth_scopes` has pairs like `mcp:use=tools:call`: a scope of the issuer's, and one of Cofer's"
    )]
    ScopePair,
    #[error("`tls_cert` and `tls_key` go together; one of them is missing")]
    HalfTls,
    #[error(
        "there is no place for the data directory: neither HOME nor XDG_DATA_HOME is set; give `--data-dir`"
    )]
    NoHome,
}

impl SettingsError {
    pub fn kind(&self) -> Kind {
        Kind::Invalid
    }
}

/// `; did you mean …?`, or nothing.
struct Suggestion(Option<&'static str>);

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |known| write!(f, "; did you mean `{known}`?"))
    }
}

impl Settings {
    /// Decides every setting from flags (with what clap took from the environment), the file they name, and defaults.
    pub fn decide(flags: Layer, variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, SettingsError> {
        let file =
            path(flags.config.clone(), None).as_deref().map(read_file).transpose()?.unwrap_or_default();
        let mut confidential = Confidential::read(&variable)?;
        let hosting = HostingSettings::decide(&flags, &file)?;
        let listen =
            text(flags.listen.clone(), file.listen.clone()).unwrap_or_else(|| DEFAULT_LISTEN.to_owned());
        let gateway = GatewaySettings::decide(&flags, &file, &listen)?;
        let environments = EnvironmentSettings::decide(&flags, &file, &listen);
        let oauth = OauthSettings::decide(&flags, &file)?;
        let agent = AgentSettings::decide(&flags, &file)?;
        let data_dir = match path(flags.data_dir, file.data_dir) {
            Some(dir) => dir,
            None => {
                default_data_dir(&|name| variable(name)?.into_string().ok()).ok_or(SettingsError::NoHome)?
            }
        };
        let database = match text(flags.database, file.database) {
            Some(url) => {
                confidential.hide_password_of(&url);
                DatabaseUrl::parse(&url).map_err(|source| SettingsError::Database { source })?
            }
            None => DatabaseUrl::Sqlite(data_dir.join("cofer.db")),
        };
        let tls = match (path(flags.tls_cert, file.tls_cert), path(flags.tls_key, file.tls_key)) {
            (Some(certificate), Some(key)) => Some(TlsFiles { certificate, key }),
            (None, None) => None,
            _ => return Err(SettingsError::HalfTls),
        };
        let wait = flags.wait_for_database.or(file.wait_for_database).unwrap_or_default();
        let ms = |ms: Option<u64>, default| ms.map_or(default, Duration::from_millis);
        let settings = Self {
            listen,
            data_dir,
            database,
            database_at_start: if wait { DatabaseAtStart::WaitFor } else { DatabaseAtStart::MustAnswer },
            behind_proxy: flags.behind_proxy.or(file.behind_proxy).unwrap_or_default(),
            tls,
            log_format: flags.log_format.or(file.log_format).unwrap_or_default(),
            log: text(flags.log, file.log).unwrap_or_else(|| DEFAULT_LOG.to_owned()),
            docker_host: text(flags.docker_host, file.docker_host),
            podman_host: text(flags.podman_host, file.podman_host),
            open_metrics: flags.open_metrics.or(file.open_metrics).unwrap_or_default(),
            open_openapi: flags.open_openapi.or(file.open_openapi).unwrap_or_default(),
            body_bytes_max: flags.body_bytes_max.or(file.body_bytes_max).unwrap_or(DEFAULT_BODY_BYTES_MAX),
            header_timeout: ms(flags.header_timeout_ms.or(file.header_timeout_ms), DEFAULT_HEADER_TIMEOUT),
            body_timeout: ms(flags.body_timeout_ms.or(file.body_timeout_ms), DEFAULT_BODY_TIMEOUT),
            connections_max: flags
                .connections_max
                .or(file.connections_max)
                .unwrap_or(DEFAULT_CONNECTIONS_MAX),
            requests_max: flags.requests_max.or(file.requests_max).unwrap_or(DEFAULT_REQUESTS_MAX),
            drain: ms(flags.drain_ms.or(file.drain_ms), DEFAULT_DRAIN),
            hosting,
            gateway,
            environments,
            oauth,
            agent,
            confidential,
        };
        settings.check_limits()?;
        Ok(settings)
    }

    /// Limits of zero would lock everybody out, and counting has an end.
    fn check_limits(&self) -> Result<(), SettingsError> {
        let zeros = [
            ("body_bytes_max", self.body_bytes_max == 0),
            ("header_timeout_ms", self.header_timeout.is_zero()),
            ("body_timeout_ms", self.body_timeout.is_zero()),
            ("connections_max", self.connections_max == 0),
            ("requests_max", self.requests_max == 0),
        ];
        if let Some((name, _)) = zeros.iter().find(|(_, zero)| *zero) {
            return Err(SettingsError::Zero(name));
        }
        let max = tokio::sync::Semaphore::MAX_PERMITS;
        let counts = [("connections_max", self.connections_max), ("requests_max", self.requests_max)];
        let too_large = counts.iter().find(|(_, count)| *count > max);
        too_large.map_or(Ok(()), |(name, _)| Err(SettingsError::TooLarge { name, max }))
    }
}

/// As clap has it, but an empty one too: it says nothing, see below.
pub fn any_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// What the flag says, else what the file says. An empty text, as scripts like to leave in variables, says nothing.
fn text(flag: Option<String>, file: Option<String>) -> Option<String> {
    [flag, file].into_iter().flatten().find(|text| !text.is_empty())
}

fn path(flag: Option<PathBuf>, file: Option<PathBuf>) -> Option<PathBuf> {
    [flag, file].into_iter().flatten().find(|path| !path.as_os_str().is_empty())
}

/// Where data goes when nobody says: as the XDG convention has it.
pub fn default_data_dir(variable: &impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_DATA_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share")))
        .map(|base| base.join("cofer"))
}

fn read_file(path: &Path) -> Result<Layer, SettingsError> {
    let read = std::fs::read_to_string(path);
    let text = read.map_err(|source| SettingsError::Unreadable { path: path.to_owned(), source })?;
    let malformed = |source| SettingsError::Malformed { path: path.to_owned(), source: Box::new(source) };
    let table: toml::Table = text.parse().map_err(malformed)?;
    let known = known_keys();
    if let Some(key) = table.keys().find(|key| !known.contains(&key.as_str())) {
        let suggestion = nearest(key, &known);
        return Err(SettingsError::UnknownKey { path: path.to_owned(), key: key.clone(), suggestion });
    }
    toml::from_str(&text).map_err(malformed)
}

/// The file's keys are the flags' names. `serde` knows them, and tells when asked for a key that cannot exist.
fn known_keys() -> Vec<&'static str> {
    struct Fields(Vec<&'static str>);

    impl<'de> serde::Deserializer<'de> for &mut Fields {
        type Error = serde::de::value::Error;

        fn deserialize_any<V: serde::de::Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
            Err(serde::de::Error::custom("only asked for its fields"))
        }

        fn deserialize_struct<V: serde::de::Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Self::Error> {
            self.0 = fields.to_vec();
            self.deserialize_any(visitor)
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut fields = Fields(Vec::new());
    let _only_asked_for_its_fields = Layer::deserialize(&mut fields);
    fields.0
}

fn nearest(key: &str, known: &[&'static str]) -> Option<&'static str> {
    let scored = known.iter().map(|known| (strsim::jaro_winkler(key, known), *known));
    let (similarity, best) = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (similarity >= SUGGESTION_SIMILARITY_MIN).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nowhere(_: &str) -> Option<OsString> {
        None
    }

    fn at_home(name: &str) -> Option<OsString> {
        (name == "HOME").then(|| "/home/ada".into())
    }

    /// The only caller of `decide` with a file: what comes of this text in the file.
    fn with_file(text: &str, flags: Layer) -> Result<Settings, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cofer.toml");
        std::fs::write(&path, text).unwrap();
        Settings::decide(Layer { config: Some(path), ..flags }, at_home).map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_at_all_gives_the_defaults() {
        let settings = Settings::decide(Layer::default(), at_home).unwrap();
        assert_eq!(settings.listen, "127.0.0.1:7070");
        assert_eq!(settings.data_dir, Path::new("/home/ada/.local/share/cofer"));
        assert_eq!(settings.database.to_string(), "sqlite:/home/ada/.local/share/cofer/cofer.db");
    }

    #[test]
    fn a_flag_beats_the_file_and_the_file_beats_the_default() {
        let flags = Layer { listen: Some("127.0.0.1:1".to_owned()), ..Layer::default() };
        let settings = with_file("listen = '127.0.0.1:2'\nrequests_max = 7", flags).unwrap();
        assert_eq!((settings.listen.as_str(), settings.requests_max), ("127.0.0.1:1", 7));
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_known_one() {
        let error = with_file("lisen = 'x'", Layer::default()).unwrap_err();
        assert!(error.ends_with("has an unknown key `lisen`; did you mean `listen`?"), "{error}");
        let error = with_file("zzz = 1", Layer::default()).unwrap_err();
        assert!(error.ends_with("has an unknown key `zzz`"), "{error}");
    }

    #[test]
    fn the_file_cannot_name_another_file() {
        assert!(with_file("config = 'other.toml'", Layer::default()).is_err());
    }

    #[test]
    fn broken_files_are_refused() {
        for text in ["listen = ", "listen = 7070", "requests_max = -1", "log_format = 'xml'", "[[listen]]"] {
            assert!(with_file(text, Layer::default()).unwrap_err().contains("is not valid TOML"), "{text}");
        }
    }

    #[test]
    fn limits_of_zero_or_beyond_counting_and_half_a_tls_are_refused() {
        let endless = Layer { connections_max: Some(usize::MAX), ..Layer::default() };
        assert!(with_file("", endless).unwrap_err().contains("`connections_max` is too large"));
        assert_eq!(
            with_file("requests_max = 0", Layer::default()).unwrap_err(),
            "the setting `requests_max` must not be zero"
        );
        assert!(with_file("tls_cert = 'a.pem'", Layer::default()).unwrap_err().contains("go together"));
    }

    #[test]
    fn a_bad_master_key_is_named_and_not_shown() {
        let variable = |name: &str| (name == "COFER_MASTER_KEY").then(|| "hunter2".into());
        let error = Settings::decide(Layer::default(), variable).unwrap_err();
        assert!(format!("{error} {error:?}").contains("COFER_MASTER_KEY"));
        assert!(!format!("{error} {error:?}").contains("hunter2"));
    }

    #[test]
    fn a_confidential_value_that_is_not_text_is_refused_and_not_passed_over() {
        use std::os::unix::ffi::OsStringExt;
        let variable =
            |name: &str| (name == "COFER_ADMIN_TOKEN").then(|| OsString::from_vec(vec![b'a', 0xff]));
        let error = Settings::decide(Layer::default(), variable).unwrap_err().to_string();
        assert!(error.contains("COFER_ADMIN_TOKEN"), "{error}");
    }

    #[test]
    fn an_empty_text_says_nothing() {
        let flags = Layer { listen: Some(String::new()), database: Some(String::new()), ..Layer::default() };
        let settings = with_file("listen = '127.0.0.1:2'", flags).unwrap();
        assert_eq!(settings.listen, "127.0.0.1:2");
    }

    #[test]
    fn everything_that_must_not_be_logged_is_known() {
        let variable = |name: &str| match name {
            "HOME" => Some("/home/ada".into()),
            "COFER_ADMIN_TOKEN" => Some("chosen".into()),
            "COFER_MASTER_KEY" => Some("00".repeat(32).into()),
            _ => None,
        };
        let flags =
            Layer { database: Some("postgres://ada:hunter2@db/cofer".to_owned()), ..Layer::default() };
        let hidden = Settings::decide(flags, variable).unwrap().confidential.never_to_be_logged;
        let hidden: Vec<_> =
            hidden.iter().map(|text| secrecy::ExposeSecret::expose_secret(text).to_owned()).collect();
        assert_eq!(hidden, ["chosen", &"00".repeat(32), "hunter2"]);
    }

    #[test]
    fn without_a_home_the_data_directory_must_be_given() {
        assert!(matches!(Settings::decide(Layer::default(), nowhere), Err(SettingsError::NoHome)));
    }
}
