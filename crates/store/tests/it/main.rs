//! One suite for both databases: every test below runs on real SQLite and on real PostgreSQL.
//!
//! A test is an `async fn(Bed)`; [`on_both!`] makes two of each.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calls;
mod hosted;
mod logins;
mod opening;
mod projects;
mod registry;
mod runs;
mod schema;
mod secrets;
mod tokens;

use cofer_model::{Moment, Namespacing, Project, ProjectName, Reference, SecretName};
use cofer_store::{DatabaseUrl, NewProject, Store};
use cofer_testkit::engines::{self, Database};
use tempfile::TempDir;

/// Makes two tests of each function: `sqlite::…` and `postgres::…`.
macro_rules! on_both {
    ($($test:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test] async fn $test() { super::$test(crate::Bed::sqlite().await).await; })*
        }
        mod postgres {
            $(#[tokio::test] async fn $test() {
                let Some(bed) = crate::Bed::postgres().await else { return };
                super::$test(bed).await;
            })*
        }
    };
}
use on_both;

/// A new, empty database and a store on it. Both end with the test.
struct Bed {
    store: Store,
    url: DatabaseUrl,
    _owner: Owner,
}

enum Owner {
    Directory { _dir: TempDir },
    Server { _database: Database },
}

impl Bed {
    async fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = DatabaseUrl::Sqlite(dir.path().join("cofer.db"));
        Self::on(url, Owner::Directory { _dir: dir }).await
    }

    async fn postgres() -> Option<Self> {
        let database = engines::postgres()?.fresh_database().await;
        let url = DatabaseUrl::parse(database.url()).unwrap();
        Some(Self::on(url, Owner::Server { _database: database }).await)
    }

    async fn on(url: DatabaseUrl, owner: Owner) -> Self {
        let store = Store::open(&url).await.unwrap();
        Self { store, url, _owner: owner }
    }

    /// A second process, so to speak.
    async fn another(&self) -> Store {
        Store::open(&self.url).await.unwrap()
    }

    async fn project(&self, name: &str) -> Project {
        let new = NewProject {
            name: project_name(name),
            description: String::new(),
            namespacing: Namespacing::default(),
            repeat_safe_calls: false,
        };
        self.store.create_project(&new, Moment::now()).await.unwrap()
    }
}

fn project_name(text: &str) -> ProjectName {
    text.to_owned().try_into().unwrap()
}

fn secret_name(text: &str) -> SecretName {
    text.to_owned().try_into().unwrap()
}

fn named(text: &str) -> Reference {
    Reference::Name(text.to_owned())
}
