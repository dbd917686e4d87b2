//! What a server asks of a client of the handshake era, from the question to its end.

use std::sync::Arc;

use cofer_mcp::client::FromClient;
use cofer_model::ProjectId;
use serde_json::{Value, json};

use super::MadeUp;
use super::alone::{OneServer, Server, raw};
use crate::endpoint::{Exchange, Received, open_session, receive};
use crate::{Caller, Gateway, GatewayRules, Next, Outbox, Project, Recorder, Session};

/// A client that can be asked.
struct Client {
    project: Arc<Project>,
    session: Arc<Session>,
}

impl Client {
    async fn of(dial: &Arc<MadeUp>) -> Self {
        let rules = GatewayRules::default();
        let gateway = Gateway::start(OneServer::of(dial), Recorder::nowhere(), Vec::new(), rules);
        let project = gateway.project(ProjectId::generate()).await.unwrap().unwrap();
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}});
        let (session, _) = open_session(&project, &raw(&json!(0)), Some(&raw(&hello)), None).unwrap();
        Self { project, session }
    }

    fn says(&self, message: &Value) -> Received {
        let body = message.to_string().into_bytes();
        receive(&self.project, &self.session, FromClient::parse(&body).unwrap(), Caller::default())
    }

    fn calls(&self, id: &Value) -> Exchange {
        let params = json!({"name": "ask"});
        match self.says(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})) {
            Received::Exchange(exchange) => exchange,
            Received::Accepted => panic!("a call is answered"),
        }
    }
}

/// The next message on a stream, and its number there.
async fn next(stream: &Outbox, after: u64) -> (u64, Value) {
    match stream.after(after).await {
        Next::Message(number, message) => (number, serde_json::from_slice(&message).unwrap()),
        Next::End => panic!("it ended"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_has_a_number_of_its_own_for_its_progress_and_for_being_taken_back() {
    let dial = MadeUp::that([]);
    let client = Client::of(&dial).await;
    let Exchange { stream, answer, .. } = client.calls(&json!("call"));
    let answer = tokio::spawn(answer);
    let mut server = Server::of(&dial).await;
    let call = server.hears(|message| message["method"] == "tools/call").await;
    let params = json!({"message": "who?", "_meta": {"progressToken": "mine"}});
    server
        .says(json!({"jsonrpc": "2.0", "id": "call", "method": "elicitation/create", "params": params}))
        .await;

    let (heard, asked) = next(&stream, 0).await;
    let number = asked["id"].clone();
    assert!(number.is_u64(), "{asked}");
    assert_eq!(asked["params"]["_meta"]["progressToken"], number);

    let progress = |token: &Value| json!({"progressToken": token, "progress": 1, "message": "thinks"});
    for token in [&json!("mine"), &json!(0), &number] {
        client
            .says(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress(token)}));
    }
    let told = server.hears(|message| message["method"] == "notifications/progress").await;
    assert_eq!(told["params"], progress(&json!("mine")));

    let off = |id: &Value| {
        let params = json!({"requestId": id, "reason": "too late"});
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
    };
    // Numbers as the client knows them mean nothing to the server, which may use the same for something else.
    server.says(off(&number)).await;
    server.says(off(&json!("call"))).await;
    let (_, taken_back) = next(&stream, heard).await;
    assert_eq!(taken_back, off(&number));

    client.says(&json!({"jsonrpc": "2.0", "id": number, "result": {"action": "accept", "content": {}}}));
    client.says(
        &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "call"}}),
    );
    assert!(answer.await.unwrap().is_none());
    let last = server.hears(|_| true).await;
    assert_eq!(
        (&last["method"], &last["params"]["requestId"]),
        (&json!("notifications/cancelled"), &call["id"]),
        "what was taken back is not answered"
    );
}

#[tokio::test(start_paused = true)]
async fn a_question_that_is_taken_back_after_its_call_is_taken_back_all_the_same() {
    let dial = MadeUp::that([]);
    let client = Client::of(&dial).await;
    let Exchange { stream, answer, .. } = client.calls(&json!("call"));
    let answer = tokio::spawn(answer);
    let mut server = Server::of(&dial).await;
    server.hears(|message| message["method"] == "tools/call").await;
    server.says(elicitation("question")).await;
    let (_, asked) = next(&stream, 0).await;

    client.says(
        &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "call"}}),
    );
    stream.finish(answer.await.unwrap().map(|answer| answer.message));
    server.hears(|message| message["method"] == "notifications/cancelled").await;
    let params = json!({"requestId": "question"});
    server.says(json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})).await;
    let (_, taken_back) = next(&client.session.general, 0).await;
    assert_eq!(taken_back["params"]["requestId"], asked["id"]);
}

#[tokio::test(start_paused = true)]
async fn a_question_that_nobody_answers_does_not_take_the_time_of_the_next_one() {
    let dial = MadeUp::that([]);
    let client = Client::of(&dial).await;
    let Exchange { stream, answer, .. } = client.calls(&json!(1));
    let answer = tokio::spawn(answer);
    let mut server = Server::of(&dial).await;
    let call = server.hears(|message| message["method"] == "tools/call").await;
    server.says(elicitation("never")).await;
    next(&stream, 0).await;
    server.says(json!({"jsonrpc": "2.0", "id": call["id"], "result": {"content": []}})).await;
    answer.await.unwrap().unwrap();

    tokio::time::advance(crate::session::QUESTION_PATIENCE).await;
    let Exchange { stream, answer, .. } = client.calls(&json!(2));
    let answer = tokio::spawn(answer);
    // The conversation was closed meanwhile, because nobody used it.
    let mut server = Server::of(&dial).await;
    let call = server.hears(|message| message["method"] == "tools/call").await;
    server.says(elicitation("in time")).await;
    next(&stream, 0).await;
    // Longer than a call may take by itself.
    tokio::time::sleep(std::time::Duration::from_mins(5)).await;
    server.says(json!({"jsonrpc": "2.0", "id": call["id"], "result": {"content": []}})).await;
    let answer = answer.await.unwrap().unwrap();
    assert_eq!(answer.code, None, "{}", String::from_utf8_lossy(&answer.message));
}

fn elicitation(id: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": {"message": "who?"}})
}
