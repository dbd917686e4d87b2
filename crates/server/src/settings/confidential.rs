//! What may only come by environment, because a command line is visible to everybody on the machine.

use std::ffi::OsString;

use cofer_model::SecretName;
use cofer_store::MasterKey;
use secrecy::SecretString;

use super::SettingsError;

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

    pub(super) fn hide_password_of(&mut self, database: &str) {
        let password =
            url::Url::parse(database).ok().and_then(|url| Some(SecretString::from(url.password()?)));
        self.never_to_be_logged.extend(password);
    }
}
