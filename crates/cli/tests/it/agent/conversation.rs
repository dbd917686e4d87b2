//! What a chat does: streams, calls, goes wrong, comes to its limits, is cancelled, goes on.

use std::sync::Arc;

use cofer_testkit::model_api::{ModelApi, Reply};
use cofer_testkit::{until, until_seen};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{CHAT, RUNS, asked, chat, gate, gate_with, hello, messages, offered, results, run};
use crate::gateway::Gate;

fn echo(text: &str) -> Reply {
    Reply::tool("t1", "echo", &json!({"text": text}))
}

#[tokio::test]
async fn a_chat_streams_what_happens_and_ends_with_done() {
    let api = ModelApi::scripted(vec![echo("soup"), Reply::text("It said soup.")]).await;
    let gate = gate(&api).await;
    gate.misbehaving("kitchen", &[]).await;
    let events =
        chat(&gate, &json!({"message": "what does it say?", "system": "Be brief.", "model": "claude-x"}))
            .await;
    assert_eq!(events.names()[..3], ["run", "tool_call", "tool_result"]);
    assert_eq!(events.text(), "It said soup.");
    let call = events.one("tool_call");
    assert_eq!(*call, json!({"id": "t1", "name": "echo", "server": "kitchen", "input": {"text": "soup"}}));
    let result = events.one("tool_result");
    assert_eq!(
        (&result["id"], &result["name"], &result["status"]),
        (&json!("t1"), &json!("echo"), &json!("completed"))
    );
    assert_eq!(result["content"], json!([{"type": "text", "text": "soup"}]));
    assert!(result["duration_ms"].is_u64());
    let done = events.one("done");
    let usage = json!({"input_tokens": 200, "output_tokens": 40, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 100});
    let id = events.one("run")["run_id"].as_str().unwrap();
    assert_eq!(
        *done,
        json!({"run_id": id, "status": "completed", "reason": "end_turn", "text": "It said soup.", "usage": usage})
    );
    let asked = &api.requests()[0];
    assert_eq!((&asked["model"], &asked["system"][0]["text"]), (&json!("claude-x"), &json!("Be brief.")));
    assert_eq!(api.heard()[0].header("x-api-key"), Some("sk-test"));
    assert!(!gate.app.log().contains("sk-test"));
    gate.stop().await;
}

#[tokio::test]
async fn the_same_in_one_answer() {
    let api = ModelApi::scripted(vec![echo("soup"), Reply::text("It said soup.")]).await;
    let gate = gate(&api).await;
    gate.misbehaving("kitchen", &[]).await;
    let answer = asked(&gate, &hello()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = answer.json();
    assert_eq!(
        (&answer["status"], &answer["reason"], &answer["text"]),
        (&json!("completed"), &json!("end_turn"), &json!("It said soup."))
    );
    let call = &answer["tool_calls"][0];
    assert_eq!(
        (&call["name"], &call["server"], &call["status"]),
        (&json!("echo"), &json!("kitchen"), &json!("completed"))
    );
    assert_eq!(run(&gate, answer["run_id"].as_str().unwrap()).await["usage"], answer["usage"]);
    gate.stop().await;
}

#[tokio::test]
async fn several_tools_are_called_at_once_and_names_are_led_back() {
    // The first answers only when a later one has been answered: one after the other they would not get far.
    let api = ModelApi::scripted(vec![
        Reply::tools(&[
            ("t1", "a__out_of_order", json!({"text": "first"})),
            ("t2", "a__echo", json!({"text": "second"})),
            ("t3", "b__echo", json!({"text": "excluded"})),
        ]),
        Reply::text("done"),
    ])
    .await;
    let gate = gate(&api).await;
    gate.app.patch("/api/v1/projects/default", &json!({"namespacing": "always"})).await;
    gate.misbehaving("a", &[]).await;
    gate.misbehaving("b", &[]).await;
    gate.misbehaving("odd", &["--only-fillers", "--tool-name", "read.file/v2 ü"]).await;
    let tools = json!(["*echo", "*order", "odd__*", "!b__*"]);
    let events = chat(&gate, &json!({"message": "hello", "tools": tools})).await;
    let requests = api.requests();
    assert_eq!(offered(&requests[0]), ["a__echo", "a__out_of_order", "odd__read_file_v2__"]);
    assert_eq!(events.all("tool_result").len(), 3);
    let texts: Vec<_> =
        results(&requests[1]).iter().map(|result| result["content"][0]["text"].clone()).collect();
    assert_eq!(texts, ["first", "second", "Unknown tool: b__echo"]);
    gate.stop().await;
}

#[tokio::test]
async fn a_name_that_the_api_does_not_take_is_led_back() {
    let odd = "read.file/v2 ü";
    let api = ModelApi::start(move |request| match request["messages"].as_array().unwrap().len() {
        1 => Reply::tool("t1", offered(request)[0], &json!({})),
        _ => Reply::text("done"),
    })
    .await;
    let gate = gate(&api).await;
    gate.misbehaving("odd", &["--only-fillers", "--tool-name", odd]).await;
    let events = chat(&gate, &hello()).await;
    assert_eq!(offered(&api.requests()[0]), ["read_file_v2__"]);
    assert_eq!(
        (&events.one("tool_call")["name"], &events.one("tool_result")["status"]),
        (&json!(odd), &json!("completed"))
    );
    assert!(results(&api.requests()[1])[0].to_string().contains("filled by odd"));
    gate.stop().await;
}

#[tokio::test]
async fn every_failure_of_a_tool_goes_back_to_the_model_and_is_no_failure_of_the_run() {
    let api = ModelApi::scripted(vec![
        Reply::tools(&[
            ("t1", "no_such_tool", json!({})),
            ("t2", "error", json!({"code": -32000, "message": "not today"})),
            ("t3", "tool_error", json!({"text": "burnt"})),
            ("t4", "crash", json!({"exit_code": 3})),
        ]),
        Reply::text("Oh."),
    ])
    .await;
    let gate = gate(&api).await;
    gate.misbehaving("bad", &[]).await;
    let events = chat(&gate, &hello()).await;
    assert_eq!(events.one("done")["status"], "completed");
    let requests = api.requests();
    let results = results(&requests[1]);
    assert_eq!(results.len(), 4);
    for result in &results {
        assert_eq!(result["is_error"], true, "{result}");
    }
    let text = |at: usize| results[at]["content"][0]["text"].as_str().unwrap();
    assert_eq!(text(0), "Unknown tool: no_such_tool");
    assert!(text(1).contains("not today") && text(2) == "burnt", "{results:?}");
    assert!(text(3).contains("may have been executed"), "{results:?}");
    gate.stop().await;
}

#[tokio::test]
async fn what_a_display_tool_is_called_with_is_shown() {
    let card = json!({"title": "Soup", "steps": ["boil"]});
    let api =
        ModelApi::scripted(vec![Reply::tool("t1", "display_recipe", &card), Reply::text("There.")]).await;
    let gate = gate_with(&api, |start| {
        let path = start.path().join("servers.json");
        let tool = json!({"name": "display_recipe", "description": "Shows a recipe", "handler": "display",
            "input_schema": {"type": "object", "properties": {"title": {"type": "string"}}}});
        std::fs::write(&path, json!({"mcpServers": {}, "nativeTools": [tool]}).to_string()).unwrap();
        start.arg(format!("--servers={}", path.display()))
    })
    .await;
    let events = chat(&gate, &hello()).await;
    assert_eq!(*events.one("display"), json!({"name": "display_recipe", "input": card}));
    assert_eq!(events.one("tool_call")["server"], "native");
    assert_eq!(results(&api.requests()[1])[0]["is_error"], false);
    assert_eq!(gate.recorded("display_recipe").await["server"], "native");
    gate.stop().await;
}

#[tokio::test]
async fn a_big_result_is_cut_and_can_be_read_on() {
    let api = ModelApi::scripted(vec![
        Reply::tool("t1", "huge", &json!({"bytes": 300_000})),
        Reply::tool("t2", "read_rest", &json!({"result": 1, "offset": 65_536})),
        Reply::text("read"),
    ])
    .await;
    let gate = gate(&api).await;
    gate.misbehaving("bad", &[]).await;
    let events = chat(&gate, &hello()).await;
    assert_eq!(events.one("done")["status"], "completed", "{events:?}");
    let requests = api.requests();
    let text = |at: usize| results(&requests[at])[0]["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(
        text(1).contains("call read_rest with {\"result\":1,\"offset\":65536}"),
        "{}",
        &text(1)[65_000..]
    );
    assert!(text(1).len() < 66_000 && text(2).len() > 60_000);
    gate.stop().await;
}

#[tokio::test]
async fn images_reach_the_model_as_images() {
    let api =
        ModelApi::scripted(vec![Reply::tool("t1", "get-tiny-image", &json!({})), Reply::text("A picture.")])
            .await;
    let Some(tools) = cofer_testkit::engines::tools() else { return };
    let gate = gate(&api).await;
    gate.stdio("everything", &tools.join("bin/mcp-server-everything"), &[], json!({})).await;
    let events = chat(&gate, &hello()).await;
    assert_eq!(events.one("done")["status"], "completed", "{events:?}");
    let requests = api.requests();
    let blocks = results(&requests[1])[0]["content"].as_array().unwrap().clone();
    let image = blocks.iter().find(|block| block["type"] == "image").unwrap_or_else(|| panic!("{blocks:?}"));
    assert_eq!(
        (&image["source"]["type"], &image["source"]["media_type"]),
        (&json!("base64"), &json!("image/png"))
    );
    gate.stop().await;
}

#[tokio::test]
async fn an_api_that_refuses_for_good_is_an_upstream_error() {
    let api =
        ModelApi::scripted(vec![Reply::refusal(401, "authentication_error", "invalid x-api-key")]).await;
    let gate = gate(&api).await;
    for answer in [gate.app.post(CHAT, &hello()).await, asked(&gate, &hello()).await] {
        assert_eq!(answer.refusal(), "502 upstream_error");
        let error = answer.json()["error"].clone();
        assert!(error["message"].as_str().unwrap().contains("401: invalid x-api-key"), "{error}");
        let run = run(&gate, error["details"]["run_id"].as_str().unwrap()).await;
        assert_eq!((&run["status"], &run["reason"]), (&json!("failed"), &json!("error")));
        assert!(run["error"].as_str().unwrap().contains("invalid x-api-key"));
    }
    gate.stop().await;
}

#[tokio::test]
async fn a_model_that_fails_after_it_has_begun_says_so_on_the_stream() {
    let api =
        ModelApi::scripted(vec![echo("x"), Reply::refusal(400, "invalid_request_error", "too long")]).await;
    let gate = gate(&api).await;
    gate.misbehaving("kitchen", &[]).await;
    let events = chat(&gate, &hello()).await;
    assert_eq!(events.one("error")["error"]["code"], "upstream_error");
    assert_eq!(events.names().last(), Some(&"done"));
    assert_eq!(events.one("done")["status"], "failed");
    gate.stop().await;
}

#[tokio::test]
async fn an_overloaded_api_is_asked_again_and_no_tool_is_called_twice() {
    let api = ModelApi::scripted(vec![
        Reply::overloaded().header("retry-after-ms", "10"),
        echo("once"),
        Reply::text("half an ans").cut_at(600),
        Reply::refusal(503, "api_error", "down").header("retry-after-ms", "10"),
        Reply::text("whole"),
    ])
    .await;
    let gate = gate(&api).await;
    gate.misbehaving("kitchen", &[]).await;
    let events = chat(&gate, &hello()).await;
    assert_eq!(events.one("done")["text"], "whole");
    assert_eq!(events.all("retry").len(), 3, "{events:?}");
    assert_eq!(events.all("tool_call").len(), 1);
    assert_eq!(gate.recorded("echo").await["step_number"], 1);
    gate.stop().await;
}

#[tokio::test]
async fn without_a_key_it_says_what_to_do_and_a_projects_own_key_is_used() {
    let api = ModelApi::scripted(vec![Reply::text("hello")]).await;
    let url = api.url.clone();
    let gate = Gate::started(|start| start.variable("ANTHROPIC_BASE_URL", url)).await;
    let answer = gate.app.post(CHAT, &hello()).await;
    assert_eq!(answer.refusal(), "412 precondition_failed");
    assert!(answer.text.contains("cofer secret set ANTHROPIC_API_KEY"), "{answer:?}");
    assert_eq!(gate.app.get(RUNS).await.json(), json!([]), "nothing is left of it");
    gate.app.put("/api/v1/projects/default/secrets/ANTHROPIC_API_KEY", &json!({"value": "sk-own"})).await;
    chat(&gate, &hello()).await;
    assert_eq!(api.heard()[0].header("x-api-key"), Some("sk-own"));
    gate.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_named() {
    let api = ModelApi::scripted(vec![Reply::text("never")]).await;
    let gate = gate(&api).await;
    let unknown = "01a1e11c-205e-72aa-971d-bff336380426";
    for (body, field) in [
        (json!({}), "message"),
        (json!({"message": " "}), "message"),
        (json!({"message": "a", "messages": []}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": [{"role": "assistant", "content": "x"}]}), "messages"),
        (json!({"messages": [{"role": "system", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": 7}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": []}]}), "messages[0].content"),
        (json!({"message": "a", "max_steps": 0}), "max_steps"),
        (json!({"message": "a", "tools": [""]}), "tools"),
        (json!({"message": "a", "model": ""}), "model"),
        (json!({"message": "a", "colour": "red"}), "colour"),
    ] {
        let answer = gate.app.post(CHAT, &body).await;
        assert_eq!(answer.refusal(), "422 validation_error", "{body}");
        assert_eq!(answer.json()["error"]["details"]["field"], field, "{body}");
    }
    let answer = gate.app.post(CHAT, &json!({"message": "a", "run_id": unknown})).await;
    assert_eq!(answer.refusal(), "404 not_found");
    assert!(api.requests().is_empty());
    gate.stop().await;
}

#[tokio::test]
async fn limits_end_a_run_with_their_name_and_it_can_go_on() {
    let api = ModelApi::start(|request| {
        if request["messages"].to_string().contains("enough") {
            Reply::text("well then")
        } else {
            echo("again")
        }
    })
    .await;
    let gate = gate_with(&api, |start| start.arg("--agent-max-steps=3")).await;
    gate.misbehaving("kitchen", &[]).await;
    let mut runs = Vec::new();
    for (more, reason, calls) in [
        (json!({"max_steps": 2}), "max_steps", 1),
        (json!({"max_steps": 99}), "max_steps", 2),
        (json!({"max_tokens": 150}), "max_tokens", 0),
    ] {
        let mut body = hello();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let events = chat(&gate, &body).await;
        let done = events.one("done");
        assert_eq!((&done["status"], &done["reason"]), (&json!("limited"), &json!(reason)), "{body}");
        assert_eq!(events.all("tool_call").len(), calls, "{body}");
        runs.push(done["run_id"].as_str().unwrap().to_owned());
    }
    let events = chat(&gate, &json!({"message": "enough", "run_id": runs[0]})).await;
    assert_eq!(
        (&events.one("done")["run_id"], &events.one("done")["text"]),
        (&json!(runs[0]), &json!("well then"))
    );
    let last = api.requests().pop().unwrap();
    let said = last["messages"].as_array().unwrap();
    assert!(said.last().unwrap().to_string().contains("This was not called"), "{last}");
    assert_eq!(run(&gate, &runs[0]).await["steps"], 3);
    gate.stop().await;
}

#[tokio::test]
async fn time_is_a_limit_too() {
    let gate_of_words = Arc::new(Semaphore::new(0));
    let api = ModelApi::scripted(vec![Reply::text("never").held_by(&gate_of_words)]).await;
    let gate = gate(&api).await;
    let events = chat(&gate, &json!({"message": "hello", "max_time_ms": 200})).await;
    assert_eq!(
        (&events.one("done")["status"], &events.one("done")["reason"]),
        (&json!("limited"), &json!("max_time"))
    );
    gate.stop().await;
}

/// A run whose tool never answers: its id, once the tool was called.
async fn hanging(gate: &Gate) -> String {
    let app = &gate.app;
    let request = app.request(reqwest::Method::POST, CHAT).bearer_auth(&app.token).json(&hello());
    let response = request.send().await.unwrap();
    response.headers()["x-run-id"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_run_is_cancelled_and_its_tool_hears() {
    let api = ModelApi::scripted(vec![Reply::tool("t1", "hang", &json!({})), Reply::text("woken")]).await;
    let gate = gate(&api).await;
    gate.misbehaving("sleeper", &[]).await;
    // Its client has left by then: the run goes on.
    let id = hanging(&gate).await;
    until_seen("the call to be under way", async || {
        let run = run(&gate, &id).await;
        if run["status"] == "running" && run["steps"] == 1 { Ok(()) } else { Err(run.to_string()) }
    })
    .await;
    let conflict = gate.app.post(CHAT, &json!({"message": "x", "run_id": id})).await;
    assert_eq!(conflict.refusal(), "409 conflict");
    let cancelled = gate.app.post(&format!("{RUNS}/{id}/cancel"), &json!({})).await;
    assert_eq!(cancelled.status, 200, "{cancelled:?}");
    assert_eq!(
        (&cancelled.json()["status"], &cancelled.json()["reason"]),
        (&json!("cancelled"), &json!("cancelled"))
    );
    let again = gate.app.post(&format!("{RUNS}/{id}/cancel"), &json!({})).await;
    assert_eq!((again.status, &again.json()["status"]), (200, &json!("cancelled")));
    assert_eq!(gate.recorded("hang").await["status"], "cancelled");
    // And it goes on: the model hears that nobody knows.
    let events = chat(&gate, &json!({"run_id": id})).await;
    assert_eq!(events.one("done")["text"], "woken");
    assert!(results(&api.requests()[1])[0].to_string().contains("was interrupted"));
    gate.stop().await;
}

#[tokio::test]
async fn a_run_whose_client_leaves_goes_on_to_its_end() {
    let hold = Arc::new(Semaphore::new(0));
    let api = ModelApi::scripted(vec![echo("x"), Reply::text("done all the same").held_by(&hold)]).await;
    let gate = gate(&api).await;
    gate.misbehaving("kitchen", &[]).await;
    let id = hanging(&gate).await;
    until("the model to be asked again", async || api.requests().len() == 2).await;
    hold.add_permits(1);
    until("the end of the run", async || run(&gate, &id).await["status"] == "completed").await;
    let said = messages(&gate, &id).await;
    assert_eq!(said.last().unwrap()["content"][0]["text"], "done all the same");
    gate.stop().await;
}

#[tokio::test]
async fn a_whole_conversation_can_be_sent() {
    let api = ModelApi::scripted(vec![Reply::text("Ada.")]).await;
    let gate = gate(&api).await;
    let image =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}});
    let sent = json!([
        {"role": "user", "content": "I am Ada."},
        {"role": "assistant", "content": [{"type": "text", "text": "Hello Ada."}]},
        {"role": "user", "content": [image, {"type": "text", "text": "Who am I?"}]},
    ]);
    chat(&gate, &json!({"messages": sent})).await;
    let heard = api.requests()[0]["messages"].clone();
    let roles: Vec<_> = heard.as_array().unwrap().iter().map(|message| message["role"].clone()).collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
    assert_eq!((&heard[0]["content"][0]["text"], &heard[2]["content"][0]), (&json!("I am Ada."), &image));
    gate.stop().await;
}

#[tokio::test]
async fn at_the_end_of_cofer_runs_are_failed_and_can_go_on_in_the_next_life() {
    let hold = Arc::new(Semaphore::new(0));
    let api = ModelApi::scripted(vec![Reply::text("x").held_by(&hold), Reply::text("here again")]).await;
    let gate = gate_with(&api, |start| start.arg("--drain-ms=200")).await;
    let id = hanging(&gate).await;
    until("the model to be asked", async || api.requests().len() == 1).await;
    let Gate { app, .. } = gate;
    let app = app.stop().await.serve().await;
    let run = app.get(&format!("{RUNS}/{id}")).await.json();
    assert_eq!((&run["status"], &run["reason"]), (&json!("failed"), &json!("error")), "{run}");
    assert!(run["error"].as_str().unwrap().contains("run_id"), "{run}");
    let answer = app.post(CHAT, &json!({"run_id": id})).await;
    assert!(answer.text.contains("here again"), "{answer:?}");
    let last: Value = api.requests().pop().unwrap();
    assert_eq!(last["messages"].as_array().unwrap().len(), 1, "nothing was said twice: {last}");
    app.stop().await;
}
