//! The master key: where it comes from, and how it is replaced.
//!
//! It comes from `COFER_MASTER_KEY`, or from `master.key` in the data directory, made at first start. The database
//! remembers the fingerprint of the key it was sealed with, so a wrong or missing key is noticed at start; a new one
//! is never made in place of a lost one.
//!
//! A new key is written to a draft named after its fingerprint *before* the database takes it, and renamed after. Whatever
//! happens in between (the process dies, the database's answer is lost or late), the key that the database is sealed with is
//! in one of the files, and [`KeyRing::settle`] finds it: at start, before the next rotation, and when a secret cannot be kept
//! with the key at hand. A draft whose fate is open is never overwritten; drafts go when a later rotation has succeeded, for
//! that one had to wait for theirs.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use cofer_model::{Kind, Moment, ProjectId, SecretEntry, SecretName, ServerId};
use cofer_store::{BadMasterKey, MasterKey, SecretsError, Store, StoreError};
use secrecy::SecretString;

use crate::data_dir::{DataDirError, sync_directory_of, write_private};
use crate::settings::Confidential;

pub(crate) const KEY_FILE: &str = "master.key";
/// What the name of a draft begins with; its fingerprint follows.
const DRAFT: &str = "master.key.new.";
/// A write waits this long for a rotation to end.
const ROTATION_PATIENCE: Duration = Duration::from_secs(10);

/// The key in use, and the secrets it seals. Rotation replaces it under everybody's hands.
#[derive(Debug)]
pub struct KeyRing {
    store: Store,
    place: Place,
    current: RwLock<Arc<MasterKey>>,
    /// Held by the one rotation that may be under way.
    rotating: tokio::sync::Mutex<()>,
    /// Secrets are written by many at once (read), the key is changed by one alone (write).
    changing: tokio::sync::RwLock<()>,
}

#[derive(Debug)]
enum Place {
    Environment,
    Files { dir: PathBuf },
}

/// What a rotation did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    pub fingerprint: String,
    pub secrets: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("the master key is missing: the database's secrets are sealed with key {sealed_with}, and {} is not there; put the file back, or set COFER_MASTER_KEY", path.display())]
    Missing { path: PathBuf, sealed_with: String },
    #[error(
        "the master key is wrong: {place} holds key {held}, and the database's secrets are sealed with key {sealed_with}; bring that key back"
    )]
    Wrong { place: String, held: String, sealed_with: String },
    #[error("{} does not hold a master key", path.display())]
    Malformed {
        path: PathBuf,
        #[source]
        source: BadMasterKey,
    },
    #[error("{} cannot be read", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the master key is being replaced; try again when that is done")]
    BeingReplaced,
    #[error(
        "the master key comes from COFER_MASTER_KEY; to replace it, start Cofer with the new key there and the old one in COFER_MASTER_KEY_PREVIOUS"
    )]
    NotOurs,
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error(transparent)]
    Secrets(#[from] SecretsError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl KeyError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Missing { .. } | Self::Wrong { .. } | Self::NotOurs => Kind::PreconditionFailed,
            Self::BeingReplaced => Kind::Unavailable,
            Self::Malformed { .. } => Kind::Invalid,
            Self::Unreadable { .. } => Kind::Forbidden,
            Self::DataDir(error) => error.kind(),
            Self::Secrets(error) => error.kind(),
            Self::Store(error) => error.kind(),
        }
    }
}

impl KeyRing {
    /// Finds the key that the database is sealed with; makes one only if it is sealed with none.
    pub async fn load(
        store: &Store,
        dir: &Path,
        confidential: &mut Confidential,
        now: Moment,
    ) -> Result<Self, KeyError> {
        let in_use = store.master_key_in_use().await?;
        let (place, key) = if let Some(key) = confidential.master_key.take() {
            let previous = confidential.master_key_previous.take();
            (Place::Environment, from_environment(store, key, previous, in_use, now).await?)
        } else {
            let found = from_files(store, dir, in_use, now).await?;
            (Place::Files { dir: dir.to_owned() }, found)
        };
        store.hold_master_key(&key, now).await?;
        let store = store.clone();
        let current = RwLock::new(Arc::new(key));
        let (rotating, changing) = (tokio::sync::Mutex::default(), tokio::sync::RwLock::default());
        Ok(Self { store, place, current, rotating, changing })
    }

    pub fn current(&self) -> Arc<MasterKey> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps a secret. If another process replaced the key meanwhile and left it here, with the new one.
    pub async fn put_secret(
        &self,
        project: ProjectId,
        name: &SecretName,
        value: &SecretString,
        now: Moment,
    ) -> Result<SecretEntry, KeyError> {
        let put = async || self.store.put_secret(&self.current(), project, name, value, now).await;
        let writing = tokio::time::timeout(ROTATION_PATIENCE, self.changing.read()).await;
        let first = match writing {
            Ok(_writing) => put().await,
            Err(_elapsed) => return Err(KeyError::BeingReplaced),
        };
        match first {
            Err(SecretsError::OtherKey { .. }) => {
                let _alone = self.changing.write().await;
                self.settle().await?;
                Ok(put().await?)
            }
            outcome => Ok(outcome?),
        }
    }

    /// The clear values of a project's secrets, for whoever starts or connects something that names them.
    pub async fn open_secrets(
        &self,
        project: ProjectId,
    ) -> Result<BTreeMap<SecretName, SecretString>, KeyError> {
        let open = async || self.store.open_secrets(&self.current(), project).await;
        let opened = match open().await {
            // Another process, or a rotation under way, replaced the key.
            Err(SecretsError::OtherKey { .. }) => {
                let _alone = self.changing.write().await;
                self.settle().await?;
                open().await?
            }
            outcome => outcome?,
        };
        Ok(opened.into_iter().collect())
    }

    /// Keeps a login, in the same way as a secret.
    pub async fn put_login(
        &self,
        server: ServerId,
        login: &SecretString,
        has_tokens: bool,
        now: Moment,
    ) -> Result<(), KeyError> {
        let put = async || self.store.put_login(&self.current(), server, login, has_tokens, now).await;
        let writing = tokio::time::timeout(ROTATION_PATIENCE, self.changing.read()).await;
        let first = match writing {
            Ok(_writing) => put().await,
            Err(_elapsed) => return Err(KeyError::BeingReplaced),
        };
        match first {
            Err(SecretsError::OtherKey { .. }) => {
                let _alone = self.changing.write().await;
                self.settle().await?;
                Ok(put().await?)
            }
            outcome => Ok(outcome?),
        }
    }

    /// What was kept of the login at this server.
    pub async fn open_login(&self, server: ServerId) -> Result<Option<SecretString>, KeyError> {
        let open = async || self.store.open_login(&self.current(), server).await;
        match open().await {
            Err(SecretsError::OtherKey { .. }) => {
                let _alone = self.changing.write().await;
                self.settle().await?;
                Ok(open().await?)
            }
            outcome => Ok(outcome?),
        }
    }

    /// Makes a new key, seals every secret anew with it, and keeps it in the key file.
    pub async fn rotate(&self, now: Moment) -> Result<Rotation, KeyError> {
        let Place::Files { dir } = &self.place else { return Err(KeyError::NotOurs) };
        let _rotating = self.rotating.try_lock().map_err(|_| KeyError::BeingReplaced)?;
        let _alone = self.changing.write().await;
        self.settle().await?;
        let (old, new) = (self.current(), MasterKey::generate());
        let fingerprint = new.fingerprint();
        write_private(&draft(dir, &fingerprint), &new.to_hex())?;
        let rotated = self.store.rotate_master_key(&old, &new, now).await;
        self.settle().await?;
        let secrets = rotated?;
        remove_drafts(dir);
        tracing::info!(
            fingerprint,
            secrets,
            "master key replaced by {fingerprint}; {secrets} secrets sealed anew"
        );
        Ok(Rotation { fingerprint, secrets })
    }

    /// Brings this process and the key file in line with the database. To be called by who is alone with the key.
    async fn settle(&self) -> Result<(), KeyError> {
        let Place::Files { dir } = &self.place else { return Ok(()) };
        let in_use = self.store.master_key_in_use().await?.unwrap_or_default();
        if in_use != self.current().fingerprint()
            && let Some(key) = adopt_draft(dir, &in_use)?
        {
            *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(key);
        }
        Ok(())
    }
}

fn draft(dir: &Path, fingerprint: &str) -> PathBuf {
    dir.join(format!("{DRAFT}{fingerprint}"))
}

/// If there is a draft of this key, it becomes the key file.
fn adopt_draft(dir: &Path, fingerprint: &str) -> Result<Option<MasterKey>, KeyError> {
    let draft = draft(dir, fingerprint);
    let key = read_key(&draft)?;
    if key.is_some() {
        rename(&draft, &dir.join(KEY_FILE))?;
    }
    Ok(key)
}

/// Keys that the database never took.
fn remove_drafts(dir: &Path) {
    for file in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if file.file_name().to_string_lossy().starts_with(DRAFT) {
            // One that stays harms nobody.
            let _ = std::fs::remove_file(file.path());
        }
    }
}

async fn from_environment(
    store: &Store,
    key: MasterKey,
    previous: Option<MasterKey>,
    in_use: Option<String>,
    now: Moment,
) -> Result<MasterKey, KeyError> {
    let held = key.fingerprint();
    match (in_use, previous) {
        (None, _) => Ok(key),
        (Some(sealed_with), _) if sealed_with == held => Ok(key),
        (Some(sealed_with), Some(previous)) if sealed_with == previous.fingerprint() => {
            let secrets = store.rotate_master_key(&previous, &key, now).await?;
            tracing::info!(secrets, "master key replaced by {held}; {secrets} secrets sealed anew");
            Ok(key)
        }
        (Some(sealed_with), _) => {
            Err(KeyError::Wrong { place: "COFER_MASTER_KEY".to_owned(), held, sealed_with })
        }
    }
}

async fn from_files(
    store: &Store,
    dir: &Path,
    in_use: Option<String>,
    now: Moment,
) -> Result<MasterKey, KeyError> {
    let path = dir.join(KEY_FILE);
    let key = read_key(&path)?;
    match (in_use, key) {
        (None, Some(key)) => {
            tracing::warn!("this database is new, and {} is not; it is used on", path.display());
            Ok(key)
        }
        (None, None) => {
            let key = MasterKey::generate();
            write_private(&draft(dir, &key.fingerprint()), &key.to_hex())?;
            store.hold_master_key(&key, now).await?;
            rename(&draft(dir, &key.fingerprint()), &path)?;
            Ok(key)
        }
        (Some(sealed_with), Some(key)) if sealed_with == key.fingerprint() => Ok(key),
        (Some(sealed_with), key) => match (adopt_draft(dir, &sealed_with)?, key) {
            (Some(draft), _) => Ok(draft),
            (None, Some(key)) => {
                let place = path.display().to_string();
                Err(KeyError::Wrong { place, held: key.fingerprint(), sealed_with })
            }
            (None, None) => Err(KeyError::Missing { path, sealed_with }),
        },
    }
}

pub(crate) fn read_key(path: &Path) -> Result<Option<MasterKey>, KeyError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => SecretString::from(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(KeyError::Unreadable { path: path.to_owned(), source }),
    };
    let key =
        MasterKey::parse(&text).map_err(|source| KeyError::Malformed { path: path.to_owned(), source })?;
    Ok(Some(key))
}

fn rename(from: &Path, to: &Path) -> Result<(), KeyError> {
    let renamed = std::fs::rename(from, to).and_then(|()| sync_directory_of(to));
    renamed.map_err(|source| DataDirError::Unwritable { path: to.to_owned(), source }.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cofer_model::Reference;
    use cofer_store::DatabaseUrl;
    use secrecy::ExposeSecret;
    use tempfile::TempDir;

    /// A database with one secret in it, and the directory where its key lives.
    struct Bed {
        dir: TempDir,
        store: Store,
        project: ProjectId,
    }

    async fn bed() -> (Bed, KeyRing) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&DatabaseUrl::Sqlite(dir.path().join("cofer.db"))).await.unwrap();
        store.ensure_default_project(Moment::now()).await.unwrap();
        let project = store.project(&Reference::Name("default".to_owned())).await.unwrap().unwrap().id;
        let bed = Bed { dir, store, project };
        let ring = bed.load(Confidential::default()).await.unwrap();
        let name = "API_KEY".to_owned().try_into().unwrap();
        bed.store.put_secret(&ring.current(), project, &name, &"value".into(), Moment::now()).await.unwrap();
        (bed, ring)
    }

    impl Bed {
        async fn load(&self, mut confidential: Confidential) -> Result<KeyRing, KeyError> {
            KeyRing::load(&self.store, self.dir.path(), &mut confidential, Moment::now()).await
        }

        async fn secret(&self, ring: &KeyRing) -> String {
            let opened = self.store.open_secrets(&ring.current(), self.project).await.unwrap();
            opened[0].1.expose_secret().to_owned()
        }

        fn key_file(&self) -> PathBuf {
            self.dir.path().join(KEY_FILE)
        }
    }

    #[tokio::test]
    async fn the_key_made_at_first_start_is_found_at_the_next() {
        let (bed, ring) = bed().await;
        let again = bed.load(Confidential::default()).await.unwrap();
        assert_eq!(again.current().fingerprint(), ring.current().fingerprint());
        assert_eq!(bed.secret(&again).await, "value");
    }

    #[tokio::test]
    async fn a_lost_key_is_reported_and_never_replaced() {
        let (bed, _) = bed().await;
        std::fs::remove_file(bed.key_file()).unwrap();
        assert!(matches!(bed.load(Confidential::default()).await, Err(KeyError::Missing { .. })));
        assert!(!bed.key_file().exists());
    }

    #[tokio::test]
    async fn a_wrong_key_is_reported_from_file_and_from_environment() {
        let (bed, _) = bed().await;
        let wrong = Confidential { master_key: Some(MasterKey::generate()), ..Confidential::default() };
        assert!(matches!(bed.load(wrong).await, Err(KeyError::Wrong { .. })));
        write_private(&bed.key_file(), &MasterKey::generate().to_hex()).unwrap();
        assert!(matches!(bed.load(Confidential::default()).await, Err(KeyError::Wrong { .. })));
        std::fs::write(bed.key_file(), "not a key").unwrap();
        assert!(matches!(bed.load(Confidential::default()).await, Err(KeyError::Malformed { .. })));
    }

    #[tokio::test]
    async fn rotation_seals_everything_anew_and_the_old_key_opens_nothing() {
        let (bed, ring) = bed().await;
        let old = ring.current();
        assert_eq!(ring.rotate(Moment::now()).await.unwrap().secrets, 1);
        assert_eq!(bed.secret(&ring).await, "value");
        assert!(bed.store.open_secrets(&old, bed.project).await.is_err());
        assert_eq!(bed.secret(&bed.load(Confidential::default()).await.unwrap()).await, "value");
    }

    #[tokio::test]
    async fn a_rotation_cut_off_before_or_after_the_database_took_the_key_is_survived() {
        let (bed, ring) = bed().await;
        let (key, never_taken) = (bed.key_file(), MasterKey::generate());
        write_private(&draft(bed.dir.path(), &never_taken.fingerprint()), &never_taken.to_hex()).unwrap();
        assert_eq!(bed.secret(&bed.load(Confidential::default()).await.unwrap()).await, "value", "before");

        let old = ring.current().to_hex();
        let fingerprint = ring.rotate(Moment::now()).await.unwrap().fingerprint;
        let next = draft(bed.dir.path(), &fingerprint);
        std::fs::rename(&key, &next).unwrap();
        write_private(&key, &old).unwrap();
        assert_eq!(bed.secret(&bed.load(Confidential::default()).await.unwrap()).await, "value", "after");
        assert!(!next.exists());
    }

    /// As when the answer to the commit was lost: the database has the new key, the process does not know.
    #[tokio::test]
    async fn a_rotation_whose_outcome_was_not_heard_is_found_out_by_the_next_write_and_the_next_rotation() {
        let (bed, ring) = bed().await;
        let name: SecretName = "LATER".to_owned().try_into().unwrap();
        for rotate_next in [false, true] {
            let new = MasterKey::generate();
            write_private(&draft(bed.dir.path(), &new.fingerprint()), &new.to_hex()).unwrap();
            bed.store.rotate_master_key(&ring.current(), &new, Moment::now()).await.unwrap();
            if rotate_next {
                ring.rotate(Moment::now()).await.unwrap();
            }
            ring.put_secret(bed.project, &name, &"value".into(), Moment::now()).await.unwrap();
            assert_eq!(bed.secret(&ring).await, "value");
            assert_eq!(bed.secret(&bed.load(Confidential::default()).await.unwrap()).await, "value");
        }
    }

    /// As when the commit of a rotation that was given up arrives after the next one was asked for.
    #[tokio::test]
    async fn a_rotation_that_succeeds_late_is_not_lost_to_the_next_one() {
        let (bed, ring) = bed().await;
        let late = MasterKey::generate();
        write_private(&draft(bed.dir.path(), &late.fingerprint()), &late.to_hex()).unwrap();
        let another = MasterKey::generate();
        write_private(&draft(bed.dir.path(), &another.fingerprint()), &another.to_hex()).unwrap();
        bed.store.rotate_master_key(&ring.current(), &late, Moment::now()).await.unwrap();
        assert_eq!(bed.secret(&bed.load(Confidential::default()).await.unwrap()).await, "value");
    }

    #[tokio::test]
    async fn secrets_written_while_the_key_is_replaced_again_and_again_are_all_kept() {
        let (bed, ring) = bed().await;
        let ring = Arc::new(ring);
        let writers = (0..4).map(|writer| {
            let (ring, project) = (ring.clone(), bed.project);
            tokio::spawn(async move {
                for n in 0..10 {
                    let name = format!("W{writer}_{n}").try_into().unwrap();
                    ring.put_secret(project, &name, &"value".into(), Moment::now()).await.unwrap();
                }
            })
        });
        let writers: Vec<_> = writers.collect();
        for _ in 0..10 {
            ring.rotate(Moment::now()).await.unwrap();
        }
        for writer in writers {
            writer.await.unwrap();
        }
        assert_eq!(bed.store.open_secrets(&ring.current(), bed.project).await.unwrap().len(), 41);
    }

    #[tokio::test]
    async fn a_key_of_the_environments_is_replaced_by_naming_the_previous_one() {
        let (bed, ring) = bed().await;
        let parse = |key: &MasterKey| MasterKey::parse(&key.to_hex()).unwrap();
        let new = MasterKey::generate();
        let both = Confidential {
            master_key: Some(parse(&new)),
            master_key_previous: Some(parse(&ring.current())),
            ..Confidential::default()
        };
        let rotated = bed.load(both).await.unwrap();
        assert_eq!(bed.secret(&rotated).await, "value");
        assert!(matches!(rotated.rotate(Moment::now()).await, Err(KeyError::NotOurs)));
    }
}
