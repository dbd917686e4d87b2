//! `cofer server login` and `logout`: a person opens an address in a browser, and we wait until Cofer has heard of it.

use std::process::{Command, Stdio};
use std::time::Duration;

use cofer_model::Kind;
use reqwest::Method;
use serde_json::{Value, json};

use super::Hosted;
use crate::client::Patience;
use crate::commands::external::{note, project_of};
use crate::exit::Failure;
use crate::output::{harmless, with_progress};

const LOOK_EVERY: Duration = Duration::from_millis(300);
/// By one of these it is known that there is a screen to open a browser on.
const SCREENS: [&str; 2] = ["DISPLAY", "WAYLAND_DISPLAY"];

/// Whether a browser is opened for the person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Browser {
    Open,
    /// They open one themselves.
    LeaveToThem,
}

pub(super) async fn log_in(hosted: &Hosted, server: &str, browser: Browser) -> Result<(), Failure> {
    let project = project_of(&hosted.client, hosted.project.as_deref()).await?;
    let place = ["projects", &project, "mcp-servers", server, "login"];
    let asking = hosted.client.change_with(Method::POST, &place, &[], None, Patience::Endless);
    let begun = with_progress(&format!("asking {server}"), asking, async || None).await?;
    let address = begun["authorize_url"].as_str().unwrap_or_default();
    if browser == Browser::Open && opened(address) {
        note(&format!("a browser shows the login at {server}; should it not, open {address}"));
    } else {
        note(&format!("open this address in a browser to log in at {server}:"));
        note(address);
    }
    let waiting = finished(hosted, &place, &begun["id"]);
    let attempt =
        with_progress(&format!("waiting for the login at {server}"), waiting, async || None).await?;
    if attempt["state"] == "done" {
        let told = json!({"server": server, "login": "done"});
        return hosted.format.print(&told, || format!("server {server} is logged in"));
    }
    let why = attempt["error"].as_str().unwrap_or("nobody finished it in time");
    Err(Failure::new(Kind::Upstream, format!("the login at {server} did not work: {}", harmless(why))))
}

pub(super) async fn log_out(hosted: &Hosted, server: &str) -> Result<(), Failure> {
    let project = project_of(&hosted.client, hosted.project.as_deref()).await?;
    let place = ["projects", &project, "mcp-servers", server, "login"];
    hosted.client.change_with(Method::DELETE, &place, &[], None, Patience::Usual).await?;
    let told = json!({"server": server, "login": null});
    hosted.format.print(&told, || format!("server {server} is logged out"))
}

/// Waits for the end of this attempt, which comes by itself at the latest.
async fn finished(hosted: &Hosted, place: &[&str], id: &Value) -> Result<Value, Failure> {
    loop {
        let attempt = hosted.client.get(place).await?["attempt"].take();
        if attempt["id"] != *id {
            let message = "this login was given up: another one was begun, or nobody finished it in time";
            return Err(Failure::new(Kind::Conflict, message));
        }
        if attempt["state"] != "waiting" {
            return Ok(attempt);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Whether a browser could be asked to show this.
fn opened(address: &str) -> bool {
    let is_web = address.starts_with("https://") || address.starts_with("http://");
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let has_screen = cfg!(target_os = "macos") || SCREENS.iter().any(|name| std::env::var_os(name).is_some());
    let mut browser = Command::new(program);
    browser.arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    is_web && has_screen && browser.spawn().is_ok()
}
