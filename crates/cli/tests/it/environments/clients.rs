//! Real clients in a whole session: the official Inspector and the official Python SDK; and the same tools through a project's endpoint.

use std::process::Stdio;
use std::time::Duration;

use cofer_testkit::engines;
use serde_json::{Value, json};
use tokio::process::Command;

use super::Place;

const ENDS_WITHIN: Duration = Duration::from_mins(2);

async fn output_of(mut command: Command) -> String {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let ran = tokio::time::timeout(ENDS_WITHIN, command.output()).await.unwrap().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{stdout}\n{stderr}");
    stdout.into_owned()
}

/// One question of the Inspector, which starts `cofer stdio` anew for each.
async fn inspected(place: &Place, arguments: &[&str]) -> Value {
    let tools = engines::tools().unwrap();
    let cofer = place.start.command(&["stdio"]);
    let mut command = Command::new(tools.join("npm/node_modules/.bin/mcp-inspector"));
    command.arg("--cli");
    // It gives what it starts a clean environment, and this.
    for (name, value) in cofer.as_std().get_envs() {
        let (name, value) = (name.to_string_lossy(), value.unwrap_or_default().to_string_lossy());
        command.args(["-e", &format!("{name}={value}")]);
    }
    command.arg(cofer.as_std().get_program()).args(["stdio"]).args(arguments).env_clear();
    command.envs(cofer.as_std().get_envs().filter_map(|(name, value)| Some((name, value?))));
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", tools.join("npm/node_modules/.bin").display()));
    serde_json::from_str(&output_of(command).await).unwrap()
}

#[tokio::test]
async fn the_inspector_makes_uses_and_destroys_an_environment() {
    let Some(_tools) = engines::tools() else { return };
    let Some(place) = Place::new("podman").await else { return };
    let listed = inspected(&place, &["--method", "tools/list"]).await;
    assert_eq!(listed["tools"].as_array().unwrap().len(), 19);
    let source = format!("environment_source={}", place.source());
    let call = async |tool: &str, arguments: &[&str]| {
        let mut all = vec!["--method", "tools/call", "--tool-name", tool, "--tool-arg", &source];
        for argument in arguments {
            all.extend(["--tool-arg", argument]);
        }
        inspected(&place, &all).await
    };
    let made = call("environment_create", &["title=inspected", "environment_id=inspected"]).await;
    assert_eq!(made["structuredContent"]["id"], "inspected", "{made}");
    let ran = call("environment_run_cmd", &["environment_id=inspected", "command=echo hello"]).await;
    assert_eq!(ran["structuredContent"]["stdout"], "hello\n", "{ran}");
    let destroyed = call("environment_destroy", &["environment_id=inspected"]).await;
    assert_eq!(destroyed["structuredContent"]["environment_id"], "inspected", "{destroyed}");
    assert_eq!(place.traces(), [""; 0]);
}

/// What the SDK's client does; it checks each result against the schema that the tool promised.
const SESSION: &str = r#"
import asyncio, json, os, sys
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

async def main():
    source = sys.argv[2]
    server = StdioServerParameters(command=sys.argv[1], args=["stdio"], env=dict(os.environ))
    async with stdio_client(server) as (read, write):
        async with ClientSession(read, write) as session:
            hello = await session.initialize()
            assert "environment_create" in hello.instructions, hello
            tools = {tool.name: tool for tool in (await session.list_tools()).tools}
            assert tools["environment_list"].annotations.read_only_hint, tools
            async def call(tool, **arguments):
                result = await session.call_tool(tool, {"environment_source": source, **arguments})
                assert not result.is_error, result
                return result
            made = json.loads((await call("environment_create", title="from the SDK")).content[0].text)
            place = {"environment_id": made["id"]}
            await call("environment_file_write", target_file="hello.txt", contents="one\ntwo\n", explanation="greet", **place)
            read = await call("environment_file_read", target_file="hello.txt", start_line_one_indexed_inclusive=2, end_line_one_indexed_inclusive=2, **place)
            assert read.content[0].text == "two\n", read
            await call("environment_file_edit", target_file="hello.txt", search_text="two", replace_text="three", **place)
            assert (await call("environment_file_list", path=".", **place)).content[0].text == "README.md\nhello.txt"
            ran = await call("environment_run_cmd", command="cat hello.txt; exit 3", **place)
            assert ran.structured_content["exit_code"] == 3 and ran.structured_content["stdout"] == "one\nthree\n", ran
            await call("environment_file_delete", target_file="hello.txt", **place)
            for tool in ["environment_open", "environment_log", "environment_diff", "environment_background_list", "environment_update_metadata"]:
                await call(tool, **place)
            await call("environment_list")
            missing = await session.call_tool("environment_open", {"environment_source": source, "environment_id": "no-such"})
            assert missing.is_error and missing.structured_content["error"]["kind"] == "not_found", missing
            await call("environment_destroy", **place)
    print("done")

asyncio.run(main())
"#;

#[tokio::test]
async fn the_python_sdk_finds_every_result_as_its_schema_promises() {
    let Some(tools) = engines::tools() else { return };
    let Some(place) = Place::new("podman").await else { return };
    let cofer = place.start.command(&["stdio"]);
    let mut command = Command::new(tools.join("venv/bin/python"));
    command.args(["-c", SESSION]).arg(cofer.as_std().get_program()).arg(place.source()).env_clear();
    command.envs(cofer.as_std().get_envs().filter_map(|(name, value)| Some((name, value?))));
    assert_eq!(output_of(command).await.trim(), "done");
    assert_eq!(place.traces(), [""; 0]);
}

#[tokio::test]
async fn a_project_offers_the_same_tools_where_the_operator_names_sources() {
    let Some(place) = Place::new("podman").await else { return };
    let source = place.source().to_owned();
    let (refused, secret) =
        (place.start.path().join("elsewhere"), json!({"value": "kept-by-the-project-1618"}));
    std::fs::create_dir(&refused).unwrap();
    let file = json!({"secrets": ["TOKEN=cofer://TOKEN"]});
    std::fs::write(place.path.join(".cofer/environment.json"), file.to_string()).unwrap();
    let variables: Vec<(String, String)> = ["COFER_ENVIRONMENT_PROVIDER", "COFER_ENVIRONMENT_IMAGE"]
        .into_iter()
        .zip(["podman", super::IMAGE])
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let mut start = crate::start().with_engines().variable("COFER_ENVIRONMENT_SOURCES", &source);
    for (name, value) in variables {
        start = start.variable(&name, value);
    }
    let app = start.serve().await;
    assert_eq!(app.put("/api/v1/projects/default/secrets/TOKEN", &secret).await.status, 200);
    let call = async |tool: &str, arguments: Value| {
        let body = json!({"name": tool, "arguments": arguments});
        let answer = app.post("/api/v1/projects/default/tools/call", &body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    };
    let made = call("environment_create", json!({"environment_source": source, "title": "t"})).await;
    let id = made["structuredContent"]["id"].as_str().unwrap();
    let place_of = |more: Value| {
        let mut arguments = json!({"environment_source": source, "environment_id": id});
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        arguments
    };
    let ran = call("environment_run_cmd", place_of(json!({"command": "echo $TOKEN"}))).await;
    assert_eq!(ran["structuredContent"]["stdout"], "kept-by-the-project-1618\n", "{ran}");
    let elsewhere = json!({"environment_source": refused, "title": "t"});
    let outside = call("environment_create", elsewhere).await;
    assert_eq!(outside["structuredContent"]["error"]["kind"], "invalid", "{outside}");
    call("environment_destroy", place_of(json!({}))).await;
    let recorded = app.get("/api/v1/projects/default/tool-calls?tool=environment_run_cmd").await.json();
    assert!(recorded.to_string().contains("\"native\""), "{recorded}");
    app.stop().await;
    assert_eq!(place.traces(), [""; 0]);
}

#[tokio::test]
async fn where_others_could_reach_them_environments_are_not_offered_unasked() {
    let start = crate::start().listen("0.0.0.0:0").variable("COFER_ENVIRONMENT_SOURCES", "/srv");
    let app = start.variable("COFER_BEHIND_PROXY", "true").serve().await;
    app.logged("environments are not offered").await;
    let tools = app.get("/api/v1/projects/default/tools").await;
    assert!(!tools.text.contains("environment_create"), "{tools:?}");
    app.stop().await;
}
