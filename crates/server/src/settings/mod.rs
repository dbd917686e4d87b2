//! Every setting, in one place.
//!
//! [`Layer`] names each setting once: its flag, its environment variable, its key in the file and its explanation
//! are all on that field. A flag beats the environment (clap sees to that), both beat the file, the file beats the
//! default, and [`Settings`] is what comes out. To add a setting, add a field to `Layer` and one to `Settings`.
//!
//! A few values come by environment only, because a command line is visible to everybody on the machine: see
//! [`Confidential`].

mod agent;
mod confidential;
mod environments;
mod gateway;
mod hosting;
mod layer;
mod oauth;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::{OsStringValueParser, TypedValueParser};
use cofer_model::{Kind, UnknownWord};
use cofer_store::{BadMasterKey, DatabaseUrl, OpenError};
use serde::Deserialize;

pub use agent::AgentSettings;
pub use confidential::Confidential;
pub use environments::EnvironmentSettings;
use environments::Reach;
pub use gateway::{GatewaySettings, McpAuth};
pub use hosting::{CrashLoopSettings, HostingSettings};
pub use layer::Layer;
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
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
        let oauth = OauthSettings::decide(&flags, &file)?;
        let behind_proxy = flags.behind_proxy.or(file.behind_proxy).unwrap_or_default();
        let reach = Reach::of(&listen, behind_proxy, oauth.public_host().as_deref());
        let environments = EnvironmentSettings::decide(&flags, &file, reach);
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
            behind_proxy,
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
