//! How an external server is reached: a child process, or over HTTP. Secrets are put in at the moment of connecting, and nowhere kept.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use cofer_gateway::{Dial, DialError, Dialled, Held, Item};
use cofer_mcp::wire::{self, Credentials, Fault, HttpTarget, Mirrors, Wire, WireFault, WireLimits};
use cofer_mcp::{Ear, Era, Face, Limits, Pump, discover, shake_hands};
use cofer_model::mask::Mask;
use cofer_model::{
    ExternalConfig, Kind, ProjectId, RemoteConfig, SecretName, ServerId, StdioConfig, template,
};
use cofer_sandbox::LogSink;
use cofer_sandbox::child::{self, ChildProcess, ChildSpec};
use cofer_supervisor::Diary;
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use super::shelf::LogShelf;
use crate::keyring::KeyRing;
use crate::logins::{LoginTarget, Logins, Shown};

/// As long as connecting may take at all: whoever dials bounds it.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_mins(5);
/// One that does not answer whether it is of the later era within this time is taken to be of the earlier one.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long dropped connections over HTTP are left alone at first.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// How long a child whose stdout has ended is given to tell how it ended.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Many: those that wait for an answer of their client are among them.
const CALLS_AT_ONCE: usize = 1024;
const CALLS_WAITING: usize = 1024;

/// What every dialling needs.
#[derive(Debug)]
pub(super) struct Means {
    pub keyring: Arc<KeyRing>,
    pub http: reqwest::Client,
    /// For servers on this machine.
    pub direct_http: reqwest::Client,
    pub message_bytes_max: usize,
    pub shelf: Arc<LogShelf>,
    pub logins: Arc<Logins>,
}

#[derive(Debug)]
pub(super) struct ExternalDial {
    means: Arc<Means>,
    project: ProjectId,
    id: ServerId,
    name: String,
    config: ExternalConfig,
    /// Whether somebody can log in there for us.
    takes_login: bool,
    era: KnownEra,
}

/// Which era a server was found to be of, so that it is not asked each time.
#[derive(Debug, Default)]
pub(super) struct KnownEra(AtomicBool);

impl KnownEra {
    fn shakes_hands(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn note_that_it_shakes_hands(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// What was found does not count: it refused to say, or did not get as far.
    fn ask_again(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

pub(super) type Secrets = BTreeMap<SecretName, SecretString>;

impl ExternalDial {
    pub(super) fn new(
        means: Arc<Means>,
        project: ProjectId,
        id: ServerId,
        name: String,
        config: ExternalConfig,
    ) -> Self {
        Self { means, project, id, name, config, takes_login: true, era: KnownEra::default() }
    }

    /// For one that is not registered: a login is kept with its registration.
    pub(super) fn without_login(self) -> Self {
        Self { takes_login: false, ..self }
    }
}

#[async_trait]
impl Dial for ExternalDial {
    async fn dial(&self, face: &Face, ear: Arc<dyn Ear>) -> Result<Dialled, DialError> {
        let secrets = self.secrets().await?;
        let login = self.login(&secrets);
        if let Some(words) = login.as_ref().and_then(|shown| shown.login.refusal(&self.name)) {
            return Err(DialError::of_ours(Kind::PreconditionFailed, words));
        }
        let dialled = self.reach(&secrets, login.clone(), face, ear).await;
        // That somebody has to log in says nothing of the server, and is known better than what failed for it. A refusal is an answer to
        // whoever shakes hands, so this is looked at in any case.
        let words = login.and_then(|shown| shown.login.advice(&self.name));
        match words {
            Some(words) => {
                self.era.ask_again();
                Err(DialError::of_ours(Kind::PreconditionFailed, words))
            }
            None => dialled,
        }
    }

    fn takes_many(&self) -> bool {
        true
    }

    fn first_wait(&self) -> Duration {
        match self.config {
            ExternalConfig::Stdio(_) => Duration::ZERO,
            ExternalConfig::Sse(_) | ExternalConfig::Http(_) => FIRST_WAIT,
        }
    }
}

impl ExternalDial {
    async fn reach(
        &self,
        secrets: &Secrets,
        login: Option<Arc<Shown>>,
        face: &Face,
        ear: Arc<dyn Ear>,
    ) -> Result<Dialled, DialError> {
        let mut mask = Mask::of(secrets.values());
        if let Some(shown) = &login {
            mask.follow(shown.login.mask());
        }
        let mask = Arc::new(mask);
        let credentials = login.map(|shown| shown as Arc<dyn Credentials>);
        match &self.config {
            ExternalConfig::Stdio(config) => {
                let (pump, held) = self.start(config, secrets, mask.clone())?;
                let greeted = greet(pump, held, face, ear.clone(), mask.clone(), &self.era).await;
                if greeted.is_ok() || self.era.shakes_hands() {
                    return greeted;
                }
                // It may have died of a question that it did not know.
                let (pump, held) = self.start(config, secrets, mask.clone())?;
                self.era.note_that_it_shakes_hands();
                let greeted = greet(pump, held, face, ear, mask, &self.era).await;
                if !greeted.as_ref().is_ok_and(|dialled| dialled.hands.protocol_version.is_some()) {
                    self.era.ask_again();
                }
                greeted
            }
            ExternalConfig::Http(config) => {
                let target = target(config, secrets)?;
                self.means.speak_as(target, credentials, face, ear, mask, &self.era).await
            }
            ExternalConfig::Sse(config) => {
                let target = target(config, secrets)?;
                let http = self.means.http_for(&target.url);
                let wire = wire::sse_as(target, credentials, http, self.means.wire_limits()).await;
                let (pump, held) =
                    self.means.over(wire.map_err(|fault| of_fault(&fault, &mask))?, mask.clone());
                // This transport is older than the later era.
                self.era.note_that_it_shakes_hands();
                greet(pump, held, face, ear, mask, &self.era).await
            }
        }
    }

    /// What is shown there of a login, if it takes one.
    fn login(&self, secrets: &Secrets) -> Option<Arc<Shown>> {
        let target = LoginTarget::of(&self.config, secrets).filter(|_| self.takes_login)?;
        let login = self.means.logins.of(self.id);
        Some(Arc::new(Shown { login, name: self.name.clone(), url: target.url }))
    }

    /// The secrets that its configuration names. None is missing.
    async fn secrets(&self) -> Result<Secrets, DialError> {
        let named = template::names(self.config.texts());
        if named.is_empty() {
            return Ok(Secrets::new());
        }
        let opened = self.means.keyring.open_secrets(self.project).await;
        let mut secrets = opened.map_err(|error| {
            DialError::of_ours(error.kind(), format!("the project's secrets cannot be opened: {error}"))
        })?;
        secrets.retain(|name, _| named.contains(name));
        let missing: BTreeSet<_> = named.into_iter().filter(|name| !secrets.contains_key(name)).collect();
        if missing.is_empty() {
            return Ok(secrets);
        }
        let missing = missing.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let message = format!(
            "server `{}` names secrets that the project does not have: {missing}; set them with `cofer secret set`",
            self.name
        );
        Err(DialError::of_ours(Kind::PreconditionFailed, message))
    }

    fn start(
        &self,
        config: &StdioConfig,
        secrets: &Secrets,
        mask: Arc<Mask>,
    ) -> Result<(Pump, Arc<dyn Held>), DialError> {
        let args: Result<Vec<_>, _> =
            config.args.iter().map(|arg| Ok(filled(arg, secrets)?.expose_secret().to_owned())).collect();
        let environment: Result<Vec<_>, DialError> =
            config.env.iter().map(|(name, value)| Ok((name.clone(), filled(value, secrets)?))).collect();
        let spec = ChildSpec {
            program: config.command.clone(),
            args: args?,
            environment: environment?,
            cwd: config.cwd.as_ref().map(PathBuf::from),
        };
        let diary = Diary::new(self.means.shelf.book(self.id), mask.clone());
        let logs: LogSink = Arc::new(move |stream, said: &[u8]| diary.take(stream, said));
        let child = child::spawn(&spec, logs)
            .map_err(|error| DialError::of_server(error.kind(), error.to_string()))?;
        let streams =
            child.streams().ok_or_else(|| DialError::of_ours(Kind::Internal, "its streams are taken"))?;
        let pump = Pump::start(streams.stdin, streams.stdout, self.means.limits());
        Ok((pump, Arc::new(HeldChild { child, mask })))
    }
}

fn target(config: &RemoteConfig, secrets: &Secrets) -> Result<HttpTarget, DialError> {
    let url = filled(&config.url, secrets)?;
    let url = Url::parse(url.expose_secret())
        .map_err(|error| DialError::of_ours(Kind::Invalid, format!("its URL cannot be read: {error}")))?;
    let headers: Result<Vec<_>, DialError> =
        config.headers.iter().map(|(name, value)| Ok((name.clone(), filled(value, secrets)?))).collect();
    Ok(HttpTarget { url, headers: headers? })
}

fn filled(text: &str, secrets: &Secrets) -> Result<SecretString, DialError> {
    // Which are missing was told before.
    template::fill(text, secrets)
        .map_err(|_| DialError::of_ours(Kind::PreconditionFailed, "a secret is missing"))
}

impl Means {
    /// Over streamable HTTP.
    pub(super) async fn speak_to(
        &self,
        target: HttpTarget,
        face: &Face,
        ear: Arc<dyn Ear>,
        mask: Arc<Mask>,
        era: &KnownEra,
    ) -> Result<Dialled, DialError> {
        self.speak_as(target, None, face, ear, mask, era).await
    }

    /// The same, showing these credentials.
    async fn speak_as(
        &self,
        target: HttpTarget,
        credentials: Option<Arc<dyn Credentials>>,
        face: &Face,
        ear: Arc<dyn Ear>,
        mask: Arc<Mask>,
        era: &KnownEra,
    ) -> Result<Dialled, DialError> {
        let http = self.http_for(&target.url);
        let wire = wire::streamable_as(target, credentials, http, self.wire_limits());
        let (pump, held) = self.over(wire, mask.clone());
        greet(pump, held, face, ear, mask, era).await
    }

    fn http_for(&self, url: &Url) -> reqwest::Client {
        let is_here = match url.host() {
            Some(url::Host::Domain(name)) => name == "localhost",
            Some(url::Host::Ipv4(address)) => address.is_loopback(),
            Some(url::Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        if is_here { self.direct_http.clone() } else { self.http.clone() }
    }

    fn over(&self, wire: Wire, mask: Arc<Mask>) -> (Pump, Arc<dyn Held>) {
        let pump = Pump::start(wire.stdin, wire.stdout, self.limits());
        (pump, Arc::new(HeldWire { fault: wire.fault, mirrors: wire.mirrors, mask }))
    }

    fn limits(&self) -> Limits {
        let message_bytes_max = self.message_bytes_max;
        Limits { in_flight_max: CALLS_AT_ONCE, queue_max: CALLS_WAITING, message_bytes_max }
    }

    fn wire_limits(&self) -> WireLimits {
        WireLimits { message_bytes_max: self.message_bytes_max, ..WireLimits::default() }
    }
}

/// Finds out which era it is of, and shakes hands if need be; if that fails, says why as far as anybody knows.
async fn greet(
    pump: Pump,
    held: Arc<dyn Held>,
    face: &Face,
    ear: Arc<dyn Ear>,
    mask: Arc<Mask>,
    era: &KnownEra,
) -> Result<Dialled, DialError> {
    pump.listen(ear);
    let discovered = if era.shakes_hands() { Ok(None) } else { discover(&pump, face, PROBE_TIMEOUT).await };
    let hands = match discovered {
        Ok(Some(hands)) => Ok(hands),
        Ok(None) => match shake_hands(&pump, face, HANDSHAKE_TIMEOUT).await {
            // One of the later era that took long to begin has heard the question by now, and shakes no hands any more.
            Ok(refused) if refused.protocol_version.is_none() && !era.shakes_hands() => {
                let asked_again = discover(&pump, face, PROBE_TIMEOUT).await;
                asked_again.map(|hands| hands.unwrap_or(refused))
            }
            hands => hands,
        },
        Err(error) => Err(error),
    };
    match hands {
        Ok(hands) => {
            if hands.era == Era::Handshake {
                era.note_that_it_shakes_hands();
            }
            Ok(Dialled { pump, hands, mask, held })
        }
        Err(error) => {
            let why = held.last_words().await.unwrap_or_else(|| error.to_string());
            Err(DialError::of_server(error.kind(), why))
        }
    }
}

fn of_fault(fault: &WireFault, mask: &Mask) -> DialError {
    DialError::of_server(fault.kind, mask.apply(&fault.message).into_owned())
}

/// A child lives as long as somebody holds it.
#[derive(Debug)]
struct HeldChild {
    child: ChildProcess,
    mask: Arc<Mask>,
}

#[async_trait]
impl Held for HeldChild {
    async fn last_words(&self) -> Option<String> {
        let end = tokio::time::timeout(LAST_WORDS, self.child.ended()).await.ok()?;
        Some(self.mask.apply(&format!("it {end}")).into_owned())
    }
}

#[derive(Debug)]
struct HeldWire {
    fault: Fault,
    mirrors: Arc<Mirrors>,
    mask: Arc<Mask>,
}

#[async_trait]
impl Held for HeldWire {
    async fn last_words(&self) -> Option<String> {
        Some(self.mask.apply(&self.fault.get()?.message).into_owned())
    }

    fn learn_tools(&self, tools: &[Item]) {
        self.mirrors.learn(tools.iter().map(|tool| (tool.key.as_str(), &tool.mirrored)));
    }
}
