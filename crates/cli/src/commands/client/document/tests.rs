//! Texts as people have them, and what becomes of them.

use serde_json::{Value, json};

use super::super::known::Known;
use super::read;

fn entry() -> Value {
    json!({"command": "/bin/cofer", "args": ["stdio", "--project", "default"]})
}

fn put(known: Known, text: &str) -> String {
    let mut servers = read(text, known).unwrap();
    servers.put("cofer", &entry());
    let after = servers.text();
    let read_again = read(&after, known).unwrap();
    assert_eq!(read_again.entry("cofer"), Some(entry()), "{after}");
    after
}

fn put_and_remove(known: Known, text: &str) -> String {
    let mut servers = read(&put(known, text), known).unwrap();
    servers.remove("cofer");
    servers.text()
}

fn refusal(known: Known, text: &str) -> String {
    read(text, known).err().unwrap_or_else(|| panic!("{text} was taken"))
}

#[test]
fn an_empty_file_and_an_empty_object_become_one_with_our_entry() {
    let expected = r#"{
  "mcpServers": {
    "cofer": {
      "command": "/bin/cofer",
      "args": ["stdio", "--project", "default"]
    }
  }
}"#;
    for text in ["", "  \n", "{}", "{}\n", "{ }\n", "{\n}\n"] {
        assert_eq!(put(Known::Cursor, text).trim_end(), expected, "{text:?}");
    }
    assert_eq!(put(Known::Cursor, ""), format!("{expected}\n"));
    assert_eq!(put(Known::Cursor, "{}"), expected, "no newline at the end, as it was");
}

#[test]
fn comments_order_and_what_we_know_nothing_of_stay() {
    let text = r#"// mine
{
    /* first */ "zeta": [1, 2.50, 1e5, {"deep": {"deeper": [null, true, "\u00e9\/"]}}],
    "mcpServers": {
        // the files
        "files": {"command": "npx", "args": ["-y", "files"], "disabled": false}, // trailing
    },
    "alpha": {"x":1 ,  "y"  : 2},
}
// the end"#;
    insta::assert_snapshot!(put(Known::Cursor, text), @r#"
    // mine
    {
        /* first */ "zeta": [1, 2.50, 1e5, {"deep": {"deeper": [null, true, "\u00e9\/"]}}],
        "mcpServers": {
            // the files
            "files": {"command": "npx", "args": ["-y", "files"], "disabled": false}, // trailing
            "cofer": {
                "command": "/bin/cofer",
                "args": ["stdio", "--project", "default"],
            },
        },
        "alpha": {"x":1 ,  "y"  : 2},
    }
    // the end
    "#);
    assert_eq!(put_and_remove(Known::Cursor, text), text);
}

#[test]
fn what_was_put_in_can_be_taken_out_and_nothing_else_has_changed() {
    for text in [
        "{\n  \"mcpServers\": {\n    \"a\": {}\n  }\n}\n",
        "{\n\t\"mcpServers\": {\n\t\t\"a\": {}\n\t},\n\t\"b\": 1\n}",
        "{\r\n  \"mcpServers\": {\r\n    \"a\": {}\r\n  }\r\n}\r\n",
        "\u{feff}{\n  \"mcpServers\": {\n    \"a\": {}\n  }\n}\n",
    ] {
        assert_eq!(put_and_remove(Known::Cursor, text), text, "{text:?}");
    }
    for text in [
        "model = \"x\" # mine\n\n[mcp_servers.a]\ncommand = 'b'\n\n[tail]\nx = 1\n",
        "[mcp_servers.a]\r\ncommand = \"b\"\r\n",
        "",
    ] {
        assert_eq!(put_and_remove(Known::Codex, text), text, "{text:?}");
    }
}

#[test]
fn line_ends_of_another_system_and_a_mark_at_the_beginning_stay() {
    let after = put(Known::Cursor, "\u{feff}{\r\n  \"a\": 1\r\n}\r\n");
    assert!(after.starts_with("\u{feff}{\r\n  \"a\": 1,\r\n  \"mcpServers\""), "{after:?}");
    assert_eq!(after.matches('\n').count(), after.matches("\r\n").count(), "{after:?}");
    let after = put(Known::Codex, "# mine\r\na = 1\r\n\r\n[b]\r\nc = 2\r\n");
    assert!(after.starts_with("# mine\r\na = 1\r\n\r\n[b]\r\nc = 2\r\n"), "{after:?}");
    assert_eq!(after.matches('\n').count(), after.matches("\r\n").count(), "{after:?}");
}

#[test]
fn an_entry_is_replaced_where_it_stands() {
    let text = "{\n  \"mcpServers\": {\n    // ours\n    \"cofer\": {\"command\": \"old\"},\n    \"b\": {}\n  }\n}\n";
    let after = put(Known::Cursor, text);
    let place = |part: &str| after.find(part).unwrap();
    assert!(place("// ours") < place("\"cofer\"") && place("\"cofer\"") < place("\"b\""), "{after}");
    assert!(!after.contains("old"), "{after}");
    let text = "[mcp_servers.cofer] # ours\ncommand = \"old\"\n\n# after\n[mcp_servers.b]\ncommand = \"b\"\n";
    insta::assert_snapshot!(put(Known::Codex, text), @r#"
    [mcp_servers.cofer] # ours
    command = "/bin/cofer"
    args = ["stdio", "--project", "default"]

    # after
    [mcp_servers.b]
    command = "b"
    "#);
}

#[test]
fn tables_of_every_form_take_our_entry() {
    insta::assert_snapshot!(put(Known::Codex, "model = \"x\" # mine\n"), @r#"
    model = "x" # mine

    [mcp_servers.cofer]
    command = "/bin/cofer"
    args = ["stdio", "--project", "default"]
    "#);
    for text in [
        "mcp_servers = {}\n",
        "mcp_servers = { a = { command = \"b\" } }\n",
        "mcp_servers.a.command = \"b\"\n",
        "[mcp_servers]\n[mcp_servers.a]\ncommand = \"b\"\n",
        "mcp_servers.cofer = { command = \"old\" }\n",
        "[mcp_servers.cofer]\ncommand = \"old\"\n[mcp_servers.cofer.env]\nA = \"b\"\n",
        "no_newline = 1",
    ] {
        put(Known::Codex, text);
    }
}

#[test]
fn faults_are_told_with_their_place() {
    assert_eq!(refusal(Known::Cursor, "{\n  \"a\": 1\n  \"b\": 2\n}"), "line 2, column 9: Expected comma");
    assert!(refusal(Known::Cursor, "{\n  \"a\": ").starts_with("line "));
    assert!(refusal(Known::Codex, "a = 1\nb = = 2\n").starts_with("line 2, column 5: "));
    assert!(refusal(Known::Codex, "a = 1\na = 2\n").starts_with("line 2, column 1: "));
}

#[test]
fn hostile_texts_are_refused() {
    for text in [
        r#"{"mcpServers": []}"#,
        r#"{"mcpServers": null}"#,
        r#"{"mcpServers": "x"}"#,
        r#"{"mcpServers": {}, "mcpServers": {}}"#,
        r#"{"mcpServers": {"cofer": {}, "cof\u0065r": {}}}"#,
        "[]",
        "3",
        "null",
        "{} {}",
        "{'a': 1}",
        "{a: 1}",
        "{\"a\": 0x10}",
        "\u{0}",
        "<<<<<<< HEAD\n{}\n",
    ] {
        refusal(Known::Cursor, text);
    }
    for text in ["mcp_servers = 1\n", "mcp_servers = []\n", "[[mcp_servers]]\n", "\u{0}", "{}"] {
        refusal(Known::Codex, text);
    }
    refusal(Known::Cursor, &"[".repeat(1 << 20));
    refusal(Known::Cursor, &"{\"a\":".repeat(1 << 18));
    refusal(Known::Codex, &format!("a = {}", "[".repeat(1 << 20)));
}

#[test]
fn entries_that_are_no_objects_are_seen_and_kept() {
    let text = r#"{"mcpServers": {"a": 3, "b": [], "c": null}}"#;
    let after = put(Known::Cursor, text);
    let names: Vec<_> =
        read(&after, Known::Cursor).unwrap().entries().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "b", "c", "cofer"]);
}

#[test]
fn a_huge_file_is_no_trouble() {
    let history: Vec<_> =
        (0..50_000).map(|n| json!({"display": format!("line {n}"), "pasted": {}})).collect();
    let text = serde_json::to_string_pretty(&json!({"history": history, "mcpServers": {"a": {}}})).unwrap();
    assert!(text.len() > 2 << 20);
    let after = put(Known::ClaudeCode, &text);
    assert!(after.starts_with(&text[..text.len() - 20]), "everything before it is as it was");
}
