//! Servers of our own form that Cofer is to run: those with an `image`, or with a package to make one for.
//!
//! Their fields are those of a registration, and are passed on as they stand: one place knows their rules.

use cofer_model::ServerName;
use serde_json::{Map, Value};

use super::{DeclaredError, DeclaredHosted, DeclaredServer};

/// What says that a server is run here.
const SOURCES: [&str; 3] = ["image", "npx", "uvx"];

/// The servers that are run here, and the others as they stood.
pub(super) fn taken_out(servers: Value) -> Result<(Vec<DeclaredHosted>, Value), DeclaredError> {
    let servers = match servers {
        Value::Object(servers) => servers,
        Value::Null => Map::new(),
        // Whatever else it is, the others' rules apply.
        other => return Ok((Vec::new(), other)),
    };
    let is_hosted = |fields: &Value| SOURCES.iter().any(|source| fields.get(source).is_some());
    let (hosted, elsewhere): (Vec<_>, Vec<_>) =
        servers.into_iter().partition(|(_, fields)| is_hosted(fields));
    let hosted = hosted.into_iter().map(|(name, fields)| one(name, fields)).collect::<Result<_, _>>()?;
    Ok((hosted, Value::Object(elsewhere.into_iter().collect())))
}

fn one(name: String, fields: Value) -> Result<DeclaredHosted, DeclaredError> {
    let field = format!("servers.{name}");
    let refuse = |part: &str, message: &str| DeclaredError::new(format!("{field}.{part}"), message);
    let Value::Object(mut fields) = fields else {
        return Err(DeclaredError::new(field, "a server is a table of settings"));
    };
    let given: Vec<_> = SOURCES.into_iter().filter(|source| fields.contains_key(*source)).collect();
    let &[source] = given.as_slice() else {
        return Err(refuse(given[1], "give one of `image`, `npx` and `uvx`"));
    };
    if let Some(other) = ["command", "url"].into_iter().find(|other| fields.contains_key(*other)) {
        let message = format!("`{source}` is run by Cofer, `{other}` lives elsewhere; keep one of them");
        return Err(refuse(other, &message));
    }
    for own in ["name", "project"] {
        if fields.contains_key(own) {
            return Err(refuse(own, &format!("`{own}` is said by the file, not by a server in it")));
        }
    }
    let package = (source != "image").then(|| {
        let parts = [source, "base"].into_iter().filter_map(|part| fields.remove_entry(part));
        let mut request: Map<_, _> = parts.collect();
        request.extend(fields.get("provider").map(|provider| ("provider".to_owned(), provider.clone())));
        Value::Object(request)
    });
    let name = ServerName::try_from(name).map_err(|error| DeclaredError::new(field, error.to_string()))?;
    fields.insert("name".to_owned(), name.as_str().into());
    Ok(DeclaredHosted { name, package, registration: Value::Object(fields) })
}

impl DeclaredHosted {
    /// What may name secrets.
    pub(super) fn values(&self) -> impl Iterator<Item = &str> {
        let environment = self.registration["environment"].as_object();
        environment.into_iter().flat_map(Map::values).filter_map(Value::as_str)
    }
}

/// A name is used once, whoever runs the server.
pub(super) fn check_names(
    hosted: &[DeclaredHosted],
    servers: &[DeclaredServer],
) -> Result<(), DeclaredError> {
    match hosted.iter().find(|hosted| servers.iter().any(|server| server.name == hosted.name)) {
        None => Ok(()),
        Some(twice) => {
            let message = format!("two servers are called `{}`; give one of them another name", twice.name);
            Err(DeclaredError::new(twice.name.as_str(), message))
        }
    }
}
