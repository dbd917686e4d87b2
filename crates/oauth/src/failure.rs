//! What can go wrong between us and an authorization server, in words that say what to do.

use cofer_model::Kind;

#[derive(Debug, thiserror::Error)]
pub enum OauthError {
    #[error("{whom} cannot be reached")]
    Unreachable {
        whom: String,
        #[source]
        source: reqwest::Error,
    },
    #[error("{whom} did not answer in time")]
    Late { whom: String },
    #[error("{whom} answered with more than the {bytes_max} bytes that are read")]
    TooLong { whom: String, bytes_max: usize },
    #[error("{whom} leads from one address to the next without end")]
    Astray { whom: String },
    #[error("{whom} answered HTTP {status}")]
    Status { whom: String, status: u16 },
    #[error("{whom} answered with something that is not what was asked for: {what}")]
    Nonsense { whom: String, what: String },
    /// Where tokens and passwords would be read by others, or where a stranger has no business to send us.
    #[error("`{address}` is not asked: {why}")]
    Unfit { address: String, why: &'static str },
    #[error(
        "the server says that its tokens are for `{said}`, which is not its own address; nothing is asked for in that name"
    )]
    OtherResource { said: String },
    #[error("the server names nobody who could give it a token")]
    NobodyToAsk,
    #[error(
        "the authorization server is `{expected}`, and its description is that of `{said}`; it is not used"
    )]
    OtherIssuer { expected: String, said: String },
    #[error("`{issuer}` has no description of itself at any of the usual addresses")]
    Undescribed { issuer: String },
    #[error("`{issuer}` does not protect logins by PKCE with S256, so they are not made there")]
    NoPkce { issuer: String },
    #[error(
        "`{issuer}` does not let unknown clients register; register Cofer there with the redirect address `{redirect_uri}`, and set `oauth.client_id` of this server"
    )]
    NoRegistration { issuer: String, redirect_uri: String },
    #[error(
        "the client id of this server is that of `{registered_at}`, and the server now wants tokens of `{issuer}`; register there, and set `oauth.client_id` and `oauth.issuer` anew"
    )]
    OtherClient { registered_at: String, issuer: String },
    /// It says no, by name.
    #[error("{whom} refused: {}", spoken(error, description.as_deref()))]
    Refused { whom: String, error: String, description: Option<String> },
    #[error(
        "the answer to the login does not come from `{expected}`; it is not used, and nothing in it is believed"
    )]
    OtherAnswer { expected: String },
}

fn spoken(error: &str, description: Option<&str>) -> String {
    description.map_or_else(|| error.to_owned(), |description| format!("{error} ({description})"))
}

impl OauthError {
    pub fn kind(&self) -> Kind {
        match self {
            Self::Unreachable { .. } => Kind::Unavailable,
            Self::Late { .. } => Kind::Timeout,
            Self::NoRegistration { .. } | Self::OtherClient { .. } | Self::Unfit { .. } => {
                Kind::PreconditionFailed
            }
            Self::TooLong { .. }
            | Self::Astray { .. }
            | Self::Status { .. }
            | Self::Nonsense { .. }
            | Self::OtherResource { .. }
            | Self::NobodyToAsk
            | Self::OtherIssuer { .. }
            | Self::Undescribed { .. }
            | Self::NoPkce { .. }
            | Self::Refused { .. }
            | Self::OtherAnswer { .. } => Kind::Upstream,
        }
    }

    /// Whether trying the same again may help: nobody said no.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Late { .. } => true,
            Self::Status { status, .. } => *status >= 500 || *status == 429,
            Self::Refused { error, .. } => error == "temporarily_unavailable" || error == "server_error",
            _ => false,
        }
    }

    /// Whether it does not know us any more.
    pub fn is_unknown_client(&self) -> bool {
        matches!(self, Self::Refused { error, .. } if error == "invalid_client" || error == "unauthorized_client")
    }
}
