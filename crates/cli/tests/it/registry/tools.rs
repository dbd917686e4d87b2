//! `cofer tools` and `cofer call`, against a server that answers what it was told to: what a person sees does not depend on who
//! connects to what.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use cofer_testkit::app::{Ran, Start};
use serde_json::{Value, json};

use crate::start;

const TOOLS: &str = r#"{"tools":[
    {"name":"add","server":"maths","title":null,"description":"Adds two numbers\nexactly","input_schema":{"type":"object","properties":{
        "a":{"type":"number"},"b":{"type":"integer"},"note":{"type":"string"},"tags":{"type":"array","items":{"type":"string"}}}},
     "output_schema":null,"annotations":null,"enabled":true,"shadowed_by":null},
    {"name":"odd","server":"strange","description":"Has \u001b[31mcolours","input_schema":{"n":1e400},"enabled":true,"shadowed_by":null},
    {"name":"off","server":"maths","description":"Subtracts","enabled":false,"shadowed_by":null}],
  "missing":[{"server":"crm","reason":"connection refused"}],"warnings":[]}"#;

/// Answers each path with its text, and tells what was posted.
struct Told {
    url: String,
    posted: Receiver<Value>,
    start: Start,
}

impl Told {
    fn new(call_answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (tell, posted) = channel();
        let answers = BTreeMap::from([
            ("/api/v1/projects", r#"[{"name":"default"}]"#),
            ("/api/v1/projects/default/tools", TOOLS),
            ("/api/v1/projects/default/tools/call", call_answer),
        ]);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                serve(&stream.unwrap(), &answers, &tell);
            }
        });
        Self { url, posted, start: start() }
    }

    async fn cofer(&self, args: &[&str]) -> Ran {
        self.start.cofer(&[args, &["--url", &self.url]].concat()).await
    }
}

fn serve(mut stream: &TcpStream, answers: &BTreeMap<&str, &str>, tell: &Sender<Value>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        for line in reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()) {
            head.push(line.to_ascii_lowercase());
        }
        let Some(path) = head.first().and_then(|line| line.split(' ').nth(1)) else { return };
        let length = head.iter().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        reader.read_exact(&mut body).unwrap();
        if !body.is_empty() {
            tell.send(serde_json::from_slice(&body).unwrap()).unwrap();
        }
        let answer = answers[path];
        write!(
            stream,
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{answer}",
            answer.len()
        )
        .unwrap();
    }
}

#[tokio::test]
async fn tools_are_listed_searched_and_none_spoils_the_list() {
    let told = Told::new("{}");
    let ran = told.cofer(&["tools"]).await;
    let lines: Vec<_> = ran.succeeded().lines().map(str::trim_end).collect();
    assert_eq!(
        lines,
        [
            "NAME  SERVER   DESCRIPTION",
            "add   maths    Adds two numbers",
            "odd   strange  Has  [31mcolours",
            "off   maths    [off] Subtracts"
        ]
    );
    assert_eq!(ran.stderr.trim(), "missing: the tools of crm (connection refused)");
    assert_eq!(told.cofer(&["tools", "--server", "maths"]).await.succeeded().lines().count(), 3);
    assert!(
        told.cofer(&["tools", "--search", "NUMBERS add"]).await.succeeded().ends_with("Adds two numbers")
    );
    assert_eq!(told.cofer(&["tools", "--search", "weather"]).await.succeeded().lines().count(), 1);
    let json = told.cofer(&["tools", "--server", "maths", "--json"]).await.json();
    assert_eq!((json["tools"].as_array().unwrap().len(), &json["missing"][0]["server"]), (2, &json!("crm")));
    assert!(told.cofer(&["tools", "--json"]).await.succeeded().contains("1e400"));
}

#[tokio::test]
async fn arguments_take_the_types_of_the_tool() {
    let told = Told::new(r#"{"content":[{"type":"text","text":"5"}]}"#);
    let file = told.start.path().join("arguments.json");
    std::fs::write(&file, r#"{"a": 1, "note": "from a file"}"#).unwrap();
    let file = format!("@{}", file.display());
    for (args, sent) in [
        (
            &["call", "add", "a=2", "b=3", "note=4", "tags=x,y"][..],
            json!({"a": 2, "b": 3, "note": "4", "tags": ["x", "y"]}),
        ),
        (&["call", "add"], json!({})),
        (&["call", "add", &file, "a=7"], json!({"a": 7, "note": "from a file"})),
        (&["call", "odd", "n=5", "t=x"], json!({"n": 5, "t": "x"})),
    ] {
        assert_eq!(told.cofer(args).await.succeeded(), "5");
        assert_eq!(told.posted.recv().unwrap(), json!({"name": args[1], "arguments": sent}), "{args:?}");
    }
    told.cofer(&["call", "add", "--timeout-ms", "200"]).await.succeeded();
    assert_eq!(told.posted.recv().unwrap(), json!({"name": "add", "arguments": {}, "timeout_ms": 200}));
    for (args, said) in [
        (&["call", "add", "a=two"][..], "`a` is to be number"),
        (&["call", "add", "b=1.5"], "`b` is to be integer"),
        (&["call", "add", "word"], "key=value"),
        (&["call", "add", "note:=x"], "not JSON"),
        (&["call", "add", "@/no/such/file"], "cannot be read"),
        (&["call", "add", "{"], "not JSON"),
    ] {
        assert!(told.cofer(args).await.failed_with(2).contains(said), "{args:?}");
    }
    assert!(told.posted.try_recv().is_err(), "what is refused is not sent");
}

#[tokio::test]
async fn how_a_call_ended_is_in_the_exit_code() {
    for (answer, code, said) in [
        (
            r#"{"content":[{"type":"text","text":"no \u001b[31mluck"}],"isError":true}"#,
            1,
            "add failed: no  [31mluck",
        ),
        (
            r#"{"content":[{"type":"text","text":"Unknown tool: add"}],"isError":true}"#,
            3,
            "`cofer tools` lists",
        ),
        ("not json", 1, "not Cofer"),
    ] {
        let told = Told::new(answer);
        assert!(told.cofer(&["call", "add"]).await.failed_with(code).contains(said), "{answer}");
    }
    let told = Told::new(r#"{"content":[],"structuredContent":{"sum": 1e400}}"#);
    assert!(told.cofer(&["call", "add"]).await.succeeded().contains("1e400"));
    assert!(told.cofer(&["call", "add", "--json"]).await.succeeded().starts_with(r#"{"content":[]"#));
}
