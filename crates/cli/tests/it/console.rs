//! The console: its files, open to everybody, of the right type and locked in by their headers; and the page in a real browser.

use std::time::Duration;

use cofer_testkit::app::App;
use cofer_testkit::browser::Browser;
use cofer_testkit::{engines, misbehaving, until};
use reqwest::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::environments::shown::{left_behind, repository};
use crate::{serving, start};

/// What it would take to run in the page, if anything that a server said became more than text.
const HOSTILE: &str = "<img src=x onerror=document.title='owned'>";
const ANSWER_MAX: Duration = Duration::from_secs(20);

#[tokio::test]
async fn the_page_and_its_parts_need_no_token_and_say_what_they_are() {
    let app = serving().await;
    for (path, kind) in [
        ("/", "text/html; charset=utf-8"),
        ("/console/console.css", "text/css; charset=utf-8"),
        ("/console/main.js", "text/javascript; charset=utf-8"),
        ("/console/icon.svg", "image/svg+xml"),
    ] {
        let answer = app.send(app.request(Method::GET, path)).await;
        assert_eq!((answer.status, answer.headers["content-type"].to_str().unwrap()), (200, kind), "{path}");
        let policy = answer.headers["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self'; "), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        assert_eq!(answer.headers["referrer-policy"], "no-referrer");
        assert!(!answer.text.is_empty(), "{path}");
    }
    app.stop().await;
}

#[tokio::test]
async fn a_file_that_the_browser_has_is_not_sent_again() {
    let app = serving().await;
    let first = app.send(app.request(Method::GET, "/console/main.js")).await;
    let tag = first.headers["etag"].to_str().unwrap();
    let again = |tag: String| app.request(Method::GET, "/console/main.js").header("if-none-match", tag);
    let same = app.send(again(tag.to_owned())).await;
    assert_eq!((same.status, same.text.as_str()), (304, ""));
    assert_eq!(same.headers["etag"], tag);
    assert!(same.headers.contains_key("content-security-policy"));
    assert_eq!(app.send(again("\"another\"".to_owned())).await.status, 200);
    let head = app.send(app.request(Method::HEAD, "/")).await;
    assert_eq!((head.status, head.text.as_str()), (200, ""));
    app.stop().await;
}

/// What comes back for a request that begins with this line, to the letter: a client would tidy up what is in it.
async fn answer_to(app: &App, line: &str) -> String {
    let mut client = TcpStream::connect(app.url.trim_start_matches("http://")).await.unwrap();
    client
        .write_all(format!("{line}\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut answer = String::new();
    let read = tokio::time::timeout(ANSWER_MAX, client.read_to_string(&mut answer)).await;
    read.unwrap().unwrap();
    answer
}

#[tokio::test]
async fn there_is_nothing_else_below_the_console() {
    let app = serving().await;
    for (path, seen) in [
        ("/console/nothing.js", "nothing.js"),
        ("/console/../Cargo.toml", "../Cargo.toml"),
        ("/console/%2e%2e/Cargo.toml", "../Cargo.toml"),
        ("/console/..%2f..%2fCargo.toml", "../../Cargo.toml"),
        ("/console/./main.js", "./main.js"),
        ("/console//etc/passwd", "/etc/passwd"),
        ("/console/a/b", "a/b"),
    ] {
        let answer = answer_to(&app, &format!("GET {path} HTTP/1.1")).await;
        assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("\"not_found\""), "{path}: {answer}");
        assert!(answer.contains(&format!("there is nothing at /console/{seen};")), "{path}: {answer}");
    }
    let post = app.send(app.request(Method::POST, "/")).await;
    assert_eq!(post.refusal(), "405 method_not_allowed");
    app.stop().await;
}

/// Nothing is loaded from elsewhere.
#[tokio::test]
async fn the_page_asks_nobody_else() {
    let app = serving().await;
    let page = app.send(app.request(Method::GET, "/")).await.text;
    assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("\"//"), "{page}");
    for script in page.split("src=\"").skip(1) {
        assert!(script.starts_with("console/"), "{script}");
    }
    app.stop().await;
}

async fn enter(browser: &mut Browser, token: &str) {
    browser.until("document.querySelector('input[name=token]')").await;
    let script = format!(
        "{{ const input = document.querySelector('input[name=token]'); input.value = '{token}'; input.form.requestSubmit(); }}"
    );
    browser.evaluate(&script).await;
}

#[tokio::test]
async fn in_a_browser_a_person_enters_sees_servers_and_tries_a_tool() {
    let Some(program) = engines::browser() else { return };
    let start = start();
    let path = repository(&start, "the repository").await;
    left_behind(&path, "door", format!("{HOSTILE}\n").as_bytes());
    let app = start.serve().await;
    let config = json!({"command": misbehaving::program(), "args": ["--stderr-line", HOSTILE]});
    let server = json!({"name": "alpha", "description": HOSTILE, "transport": "stdio", "config": config});
    assert_eq!(app.post("/api/v1/projects/default/mcp-servers", &server).await.status, 201);
    let few = json!({"name": "few", "scopes": ["tools:call"]});
    let few = app.post("/api/v1/tokens", &few).await.json();

    let mut browser = Browser::open(&program, &format!("{}/", app.url)).await;
    browser.resize(360, 740).await;
    enter(&mut browser, "wrong").await;
    browser.until("document.body.innerText.includes('does not know this token')").await;
    enter(&mut browser, &app.token).await;
    browser.until("document.querySelector('td a')?.textContent === 'alpha'").await;

    browser.evaluate("location.hash = '#/projects/default/tools/echo'").await;
    browser.until("document.querySelector('form textarea')").await;
    let call = format!(
        "{{ const text = document.querySelector('form textarea'); text.value = `{HOSTILE}`; text.form.requestSubmit(); }}"
    );
    browser.evaluate(&call).await;
    browser.until("document.querySelector('.result pre')?.textContent.startsWith('<img')").await;
    browser.evaluate("location.hash = '#/projects/default/servers/external/alpha'").await;
    browser.until("document.querySelector('.log')?.textContent.includes('<img')").await;
    browser.evaluate("location.hash = '#/projects/default/environments'").await;
    browser.until("document.querySelector('td a')?.textContent === 'door'").await;
    browser.evaluate("document.querySelector('td a').click()").await;
    browser.until("document.querySelector('.added')?.textContent.startsWith('+<img')").await;
    browser.until("document.body.innerText.includes('the work of door')").await;
    for verb in ["checkout", "merge", "apply"] {
        browser.until(&format!("document.body.innerText.includes('cofer env {verb} door')")).await;
    }
    let width = browser.evaluate("document.documentElement.scrollWidth").await;
    assert!(width.as_u64().is_some_and(|width| width <= 360), "an environment is {width} wide");
    assert_eq!(browser.evaluate("document.images.length").await, 0);
    assert_ne!(browser.evaluate("document.title").await, "owned");

    let secret = format!("A_NAME_WIDER_THAN_A_TELEPHONE_{}", "A".repeat(90));
    let kept =
        app.put(&format!("/api/v1/projects/default/secrets/{secret}"), &json!({"value": "kept"})).await;
    assert_eq!(kept.status, 200, "{kept:?}");
    until("the call is recorded", async || {
        app.get("/api/v1/projects/default/tool-calls")
            .await
            .json()
            .as_array()
            .is_some_and(|all| !all.is_empty())
    })
    .await;
    // Nothing is wide before there is something in it.
    for (view, content) in [
        ("servers", "td a"),
        ("tools", "td a"),
        ("calls", ".list summary"),
        ("runs", ".grid > p:not([hidden])"),
        ("chat", ".compose textarea"),
        ("environments", "td a"),
        ("secrets", "td code"),
    ] {
        browser.evaluate(&format!("location.hash = '#/projects/default/{view}'")).await;
        browser.until(&format!("document.querySelector('h1')?.textContent.toLowerCase() === '{view}'")).await;
        browser.until(&format!("document.querySelector('main {content}')?.getClientRects().length")).await;
        let width = browser.evaluate("document.documentElement.scrollWidth").await;
        assert!(width.as_u64().is_some_and(|width| width <= 360), "{view} is {width} wide");
    }

    browser.evaluate("[...document.querySelectorAll('button')].find((one) => one.textContent === 'Forget token').click()").await;
    assert!(browser.evaluate("sessionStorage.getItem('cofer.token')").await.is_null());
    enter(&mut browser, few["token"].as_str().unwrap()).await;
    browser.until("document.body.innerText.includes('lacks the scope admin:read')").await;
    let path = format!("/api/v1/tokens/{}", few["id"].as_str().unwrap());
    assert_eq!(app.delete(&path).await.status, 204);
    browser.evaluate("location.hash = '#/projects/default/tools'").await;
    browser.until("document.querySelector('input[name=token]')").await;
    assert_eq!(browser.close().await, Vec::<String>::new());
    app.stop().await;
}

#[tokio::test]
async fn in_a_browser_a_secret_keeps_its_lines() {
    let Some(program) = engines::browser() else { return };
    let app = serving().await;
    let mut browser = Browser::open(&program, &format!("{}/#/projects/default/secrets", app.url)).await;
    enter(&mut browser, &app.token).await;
    browser.until("document.querySelector('[name=value]')").await;
    browser
        .evaluate(
            "{ const [name, value] = document.querySelectorAll('[name=name], [name=value]');
               name.value = 'KEY'; value.value = 'BEGIN\\n  of\\nEND'; name.form.requestSubmit(); }",
        )
        .await;
    browser.until("document.querySelector('td code')?.textContent === 'KEY'").await;
    assert_eq!(browser.evaluate("document.querySelector('[name=value]').value").await, "");
    assert_eq!(browser.close().await, Vec::<String>::new());
    let config = json!({"command": misbehaving::program(), "env": {"HANDED_IN": "${KEY}"}});
    let server = json!({"name": "alpha", "transport": "stdio", "config": config});
    assert_eq!(app.post("/api/v1/projects/default/mcp-servers", &server).await.status, 201);
    let call = json!({"name": "env", "arguments": {}});
    let answer = app.post("/api/v1/projects/default/tools/call", &call).await.json();
    assert_eq!(answer["structuredContent"]["env"]["HANDED_IN"], "BEGIN\n  of\nEND", "{answer}");
    app.stop().await;
}

/// A link may lead to an environment that nobody has.
#[tokio::test]
async fn in_a_browser_no_command_is_made_of_an_address() {
    let Some(program) = engines::browser() else { return };
    let app = serving().await;
    let link = "#/projects/default/environments/door%3Brm%20-rf%20here";
    let mut browser = Browser::open(&program, &format!("{}/{link}", app.url)).await;
    enter(&mut browser, &app.token).await;
    browser.until("document.body.innerText.includes('is known here')").await;
    let commands = browser.evaluate("document.querySelectorAll('.copyable').length").await;
    assert_eq!(commands, 0, "nobody told of a command");
    assert_eq!(browser.close().await, Vec::<String>::new());
    app.stop().await;
}

#[tokio::test]
async fn in_a_browser_a_tool_that_another_hides_is_tried_by_whatever_name_leads_to_it() {
    let Some(program) = engines::browser() else { return };
    let app = serving().await;
    let long = "the-first-".repeat(6);
    for name in [long.as_str(), "later"] {
        let args = ["--server-name", name, "--only-fillers", "--tool-name", "who"];
        let config = json!({"command": misbehaving::program(), "args": args});
        let server = json!({"name": name, "transport": "stdio", "config": config});
        assert_eq!(app.post("/api/v1/projects/default/mcp-servers", &server).await.status, 201);
    }
    let mut browser = Browser::open(&program, &format!("{}/#/projects/default/tools", app.url)).await;
    enter(&mut browser, &app.token).await;
    browser.until("document.querySelectorAll('td a').length === 2").await;
    browser
        .evaluate("[...document.querySelectorAll('td a')].find((a) => a.textContent !== 'who').click()")
        .await;
    browser.until("document.querySelector('main form')").await;
    browser.evaluate("document.querySelector('main form').requestSubmit()").await;
    browser
        .until(&format!("document.querySelector('.result pre')?.textContent === 'filled by {long}'"))
        .await;
    assert_eq!(browser.close().await, Vec::<String>::new());
    app.stop().await;
}

#[tokio::test]
async fn in_a_browser_looking_for_long_piles_nothing_up() {
    let Some(program) = engines::browser() else { return };
    let app = serving().await;
    let mut browser = Browser::open(&program, &format!("{}/#/projects/default/environments", app.url)).await;
    enter(&mut browser, &app.token).await;
    browser.until("document.querySelector('.grid > p:not([hidden])')").await;
    // Those who wait for the end of a view are counted, and time passes quickly.
    browser
        .evaluate(
            "{ const { addEventListener: add, removeEventListener: remove } = EventTarget.prototype;
               const { setTimeout: wait } = window;
               window.counted = { come: 0, left: 0 };
               AbortSignal.prototype.addEventListener = function (...all) { window.counted.come += 1; return add.apply(this, all); };
               AbortSignal.prototype.removeEventListener = function (...all) { window.counted.left += 1; return remove.apply(this, all); };
               window.setTimeout = (then, ms) => wait(then, Math.min(ms, 20)); }",
        )
        .await;
    browser.until("window.counted.come >= 10").await;
    let waiting = browser.evaluate("window.counted.come - window.counted.left").await;
    assert!(waiting.as_i64().is_some_and(|waiting| waiting <= 1), "{waiting} wait");
    assert_eq!(browser.close().await, Vec::<String>::new());
    app.stop().await;
}
