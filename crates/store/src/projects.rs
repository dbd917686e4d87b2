//! Projects: the tenants.

use cofer_model::project::DEFAULT_PROJECT;
use cofer_model::{Moment, Namespacing, Project, ProjectId, ProjectName, Reference};
use uuid::Uuid;

use crate::codec::Stored;
use crate::database::{Store, on_each, rows_changed_on_each};
use crate::failure::StoreError;

#[derive(Clone, Debug)]
pub struct NewProject {
    pub name: ProjectName,
    pub description: String,
    pub namespacing: Namespacing,
    pub repeat_safe_calls: bool,
}

/// What to change; what is `None` stays.
#[derive(Clone, Debug, Default)]
pub struct ProjectChange {
    pub name: Option<ProjectName>,
    pub description: Option<String>,
    pub namespacing: Option<Namespacing>,
    pub repeat_safe_calls: Option<bool>,
}

#[derive(sqlx::FromRow)]
struct Row {
    id: Stored<Uuid>,
    name: String,
    description: String,
    namespacing: String,
    repeat_safe_calls: bool,
    created_at: Stored<Moment>,
    updated_at: Stored<Moment>,
}

impl TryFrom<Row> for Project {
    type Error = StoreError;

    fn try_from(row: Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: ProjectId(row.id.0),
            name: row.name.try_into().map_err(StoreError::unreadable)?,
            description: row.description,
            namespacing: row.namespacing.parse().map_err(StoreError::unreadable)?,
            repeat_safe_calls: row.repeat_safe_calls,
            created_at: row.created_at.0,
            updated_at: row.updated_at.0,
        })
    }
}

impl Store {
    /// Every project, by name.
    pub async fn projects(&self) -> Result<Vec<Project>, StoreError> {
        const SQL: &str = "SELECT * FROM kb.projects ORDER BY name";
        let rows: Vec<Row> = on_each!(self, |db| sqlx::query_as(SQL).fetch_all(db))?;
        rows.into_iter().map(Project::try_from).collect()
    }

    pub async fn project(&self, reference: &Reference) -> Result<Option<Project>, StoreError> {
        const BY_ID: &str = "SELECT * FROM kb.projects WHERE id = $1";
        const BY_NAME: &str = "SELECT * FROM kb.projects WHERE name = $1";
        let row: Option<Row> = match reference {
            Reference::Id(id) => {
                on_each!(self, |db| sqlx::query_as(BY_ID).bind(Stored(*id)).fetch_optional(db))?
            }
            Reference::Name(name) => {
                on_each!(self, |db| sqlx::query_as(BY_NAME).bind(name).fetch_optional(db))?
            }
        };
        row.map(Project::try_from).transpose()
    }

    pub async fn create_project(&self, new: &NewProject, now: Moment) -> Result<Project, StoreError> {
        const SQL: &str = "INSERT INTO kb.projects (id, name, description, namespacing, repeat_safe_calls, created_at, updated_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $6) RETURNING *";
        let row: Row = on_each!(self, |db| sqlx::query_as(SQL)
            .bind(Stored(ProjectId::generate().0))
            .bind(new.name.as_str())
            .bind(&new.description)
            .bind(new.namespacing.as_str())
            .bind(new.repeat_safe_calls)
            .bind(Stored(now))
            .fetch_one(db))?;
        row.try_into()
    }

    /// Makes the project that always exists, if it does not yet.
    pub async fn ensure_default_project(&self, now: Moment) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO kb.projects (id, name, description, namespacing, created_at, updated_at) \
             VALUES ($1, $2, '', $3, $4, $4) ON CONFLICT (name) DO NOTHING";
        let id = Stored(ProjectId::generate().0);
        let mode = Namespacing::default().as_str();
        rows_changed_on_each!(
            self,
            sqlx::query(SQL).bind(id).bind(DEFAULT_PROJECT).bind(mode).bind(Stored(now))
        )?;
        Ok(())
    }

    /// `None` when there is no such project (any more).
    pub async fn change_project(
        &self,
        id: ProjectId,
        change: &ProjectChange,
        now: Moment,
    ) -> Result<Option<Project>, StoreError> {
        const SQL: &str = "UPDATE kb.projects SET name = COALESCE($2, name), description = COALESCE($3, description), \
             namespacing = COALESCE($4, namespacing), repeat_safe_calls = COALESCE($5, repeat_safe_calls), \
             updated_at = $6 WHERE id = $1 RETURNING *";
        let row: Option<Row> = on_each!(self, |db| sqlx::query_as(SQL)
            .bind(Stored(id.0))
            .bind(change.name.as_ref().map(ProjectName::as_str))
            .bind(change.description.as_ref())
            .bind(change.namespacing.map(Namespacing::as_str))
            .bind(change.repeat_safe_calls)
            .bind(Stored(now))
            .fetch_optional(db))?;
        row.map(Project::try_from).transpose()
    }

    /// Removes it with all that it owns. Says whether it was there.
    pub async fn delete_project(&self, id: ProjectId) -> Result<bool, StoreError> {
        const SQL: &str = "DELETE FROM kb.projects WHERE id = $1";
        Ok(rows_changed_on_each!(self, sqlx::query(SQL).bind(Stored(id.0)))? > 0)
    }
}
