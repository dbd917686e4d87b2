//! `cofer serve`: settings, telemetry, then the server's whole life.

use clap::Args;
use cofer_server::settings::{Layer, Settings};
use cofer_server::telemetry::Telemetry;

use crate::exit::Failure;

#[derive(Debug, Args)]
pub struct Serve {
    #[command(flatten)]
    settings: Layer,
}

impl Serve {
    pub async fn run(self) -> Result<(), Failure> {
        let variable = |name: &str| std::env::var(name).ok();
        let settings = Settings::decide(self.settings, |name| std::env::var_os(name))
            .map_err(|error| Failure::caused(error.kind(), &error))?;
        let telemetry = Telemetry::start(settings.log_format, &settings.log, variable)
            .map_err(|error| Failure::caused(error.kind(), &error))?;
        cofer_server::serve(settings, &telemetry).await.map_err(|error| Failure::caused(error.kind(), &error))
    }
}
