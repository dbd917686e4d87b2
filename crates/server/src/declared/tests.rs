//! Files as they are found in the wild, and files that nobody should have written.

use super::*;
use cofer_model::Transport;
use serde_json::json;

/// Each server as `name: transport config`, then what was warned of and which secrets are named.
fn told(declared: &Declared) -> String {
    let server = |server: &DeclaredServer| {
        let off = if server.enabled { "" } else { " (off)" };
        format!("{}: {} {}{off}", server.name, server.config.transport(), json!(server.config))
    };
    let servers = declared.servers.iter().map(server);
    let warnings = declared.warnings.iter().map(|warning| format!("warning: {warning}"));
    let secret = |(name, hint): (&SecretName, &Option<String>)| {
        format!("secret: {name}{}", hint.as_deref().map(|hint| format!(" ({hint})")).unwrap_or_default())
    };
    let secrets = declared.secrets.iter().map(secret);
    servers.chain(warnings).chain(secrets).collect::<Vec<_>>().join("\n")
}

fn imported(text: &str) -> String {
    match import(text) {
        Ok(declared) => format!("{:?}\n{}", declared.form, told(&declared)),
        Err(error) => format!("refused at `{}`: {error}", error.field),
    }
}

#[test]
fn claude_desktop_and_cursor() {
    let file = r#"{
      "globalShortcut": "",
      "mcpServers": {
        "filesystem": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/ada"], "env": {"LOG": 1}},
        "My Server!": {"type": "streamable-http", "url": "https://mcp.example.com/mcp", "headers": {"Authorization": "Bearer ${env:MCP_TOKEN}"}},
        "old": {"url": "https://old.example.com/sse", "disabled": true, "alwaysAllow": ["x"]},
        "github": {"command": "docker", "args": ["run", "-i"], "env": {"GITHUB_TOKEN": "ghp_hunter2"}}
      }
    }"#;
    insta::assert_snapshot!(imported(file), @r#"
    Desktop
    filesystem: stdio {"command":"npx","args":["-y","@modelcontextprotocol/server-filesystem","/home/ada"],"env":{"LOG":"1"},"cwd":null}
    My-Server: http {"url":"https://mcp.example.com/mcp","headers":{"Authorization":"Bearer ${MCP_TOKEN}"}}
    old: sse {"url":"https://old.example.com/sse","headers":{}} (off)
    github: stdio {"command":"docker","args":["run","-i"],"env":{"GITHUB_TOKEN":"ghp_hunter2"},"cwd":null}
    warning: `My Server!` cannot be the name of a server here; it is called `My-Server`
    warning: server `old`: `alwaysAllow` is not known here and does nothing
    warning: server `github`: the value of `GITHUB_TOKEN` is written out; `cofer secret set GITHUB_TOKEN` keeps it safe, and `${GITHUB_TOKEN}` names it
    secret: MCP_TOKEN
    "#);
}

#[test]
fn who_we_are_to_an_authorization_server() {
    let file = r#"{"mcpServers": {
        "crm": {"url": "https://crm.example.com/mcp", "oauth": {"clientId": "cofer", "client_secret": "${env:CRM_SECRET}", "scopes": ["a", "b"], "port": 1}},
        "old": {"url": "https://old.example.com/mcp", "oauth": true}
    }}"#;
    assert_eq!(
        imported(file),
        "refused at `mcpServers.old.oauth`: server `old` has an `oauth` that is not an object"
    );
    let file = file.replace(", \"oauth\": true", "");
    insta::assert_snapshot!(imported(&file), @r#"
    Desktop
    crm: http {"url":"https://crm.example.com/mcp","headers":{},"oauth":{"client_id":"cofer","client_secret":"${CRM_SECRET}","scopes":["a","b"]}}
    old: http {"url":"https://old.example.com/mcp","headers":{}}
    warning: server `crm`: `port` is not known here and does nothing
    secret: CRM_SECRET
    "#);
}

#[test]
fn vs_code() {
    let file = r#"{
      // What to ask for
      "inputs": [
        {"type": "promptString", "id": "perplexity-key", "description": "Perplexity API Key", "password": true},
      ],
      "servers": {
        "perplexity": {
          "type": "stdio", "command": "docker", "args": ["run", "-i", "--rm", "-v", "${workspaceFolder}:/w"],
          "env": {"PERPLEXITY_API_KEY": "${input:perplexity-key}"}, /* asked for */
          "envFile": "${workspaceFolder}/.env",
        },
        "remote": {"type": "http", "url": "https://api.example.com/mcp/", "headers": {"X-Org": "${env:ORG}"}},
      },
    }"#;
    insta::assert_snapshot!(imported(file), @r#"
    VsCode
    perplexity: stdio {"command":"docker","args":["run","-i","--rm","-v","${workspaceFolder}:/w"],"env":{"PERPLEXITY_API_KEY":"${perplexity_key}"},"cwd":null}
    remote: http {"url":"https://api.example.com/mcp/","headers":{"X-Org":"${ORG}"}}
    warning: server `perplexity`: `${workspaceFolder}` is known to the editor alone; write the path itself
    warning: server `perplexity`: variables of an `envFile` are not read; set them as secrets
    secret: ORG
    secret: perplexity_key (Perplexity API Key)
    secret: workspaceFolder
    "#);
    let settings = r#"{"editor.fontSize": 12, "mcp": {"inputs": [], "servers": {"time": {"command": "uvx", "args": ["mcp-server-time"]}}}}"#;
    assert!(imported(settings).starts_with("VsCode\ntime: stdio"), "{}", imported(settings));
    let flat = r#"{"mcp.servers": {"time": {"command": "uvx"}}}"#;
    assert!(imported(flat).starts_with("VsCode\ntime: stdio"), "{}", imported(flat));
}

#[test]
fn a_product_manifest() {
    let file = r#"{"name": "research-kit", "version": "1.2.0", "agents": [{"x": 1}], "mcp": {"servers": [
        {"name": "search", "transport": "stdio", "command": "npx", "args": ["search"], "env": {"SEARCH_API_KEY": "${SEARCH_API_KEY}"}},
        {"name": "feed", "transport": "sse", "url": "https://feed.example.com/", "description": "News"}]}}"#;
    insta::assert_snapshot!(imported(file), @r#"
    Product
    search: stdio {"command":"npx","args":["search"],"env":{"SEARCH_API_KEY":"${SEARCH_API_KEY}"},"cwd":null}
    feed: sse {"url":"https://feed.example.com/","headers":{}}
    secret: SEARCH_API_KEY
    "#);
    assert_eq!(import(file).unwrap().products.len(), 1);
}

#[test]
fn server_json_with_packages() {
    let file = r#"{
      "$schema": "https://static.modelcontextprotocol.io/schemas/2025-09-29/server.schema.json",
      "name": "io.github.ada/weather", "description": "The weather", "version": "1.0.2",
      "packages": [
        {"registryType": "npm", "identifier": "@ada/weather", "version": "1.0.2", "transport": {"type": "stdio"},
         "packageArguments": [{"type": "named", "name": "--units", "value": "metric"}, {"type": "positional", "valueHint": "city", "isRequired": true}],
         "environmentVariables": [{"name": "WEATHER_KEY", "description": "From the weather office", "isRequired": true, "isSecret": true},
                                  {"name": "LOG_LEVEL", "default": "info"}, {"name": "PROXY"}]},
        {"registryType": "oci", "identifier": "ghcr.io/ada/weather", "version": "1.0.2", "environmentVariables": [{"name": "WEATHER_KEY", "isRequired": true}]},
        {"registryType": "mcpb", "identifier": "https://example.com/x.mcpb"}
      ]
    }"#;
    insta::assert_snapshot!(imported(file), @r#"
    Registry
    weather: stdio {"command":"npx","args":["-y","@ada/weather@1.0.2","--units","metric","${city}"],"env":{"LOG_LEVEL":"info","WEATHER_KEY":"${WEATHER_KEY}"},"cwd":null}
    warning: server `weather`: packages of `mcpb` are not known here
    warning: server `weather` can be had in 2 ways; the first is taken
    secret: WEATHER_KEY (From the weather office)
    secret: city
    "#);
}

#[test]
fn server_json_with_an_address() {
    let file = r#"{"server": {"name": "com.example/crm", "description": "CRM",
        "remotes": [{"type": "streamable-http", "url": "https://{tenant}.example.com/mcp",
                     "headers": [{"name": "Authorization", "value": "Bearer {api_key}", "isSecret": true}]}]}, "_meta": {}}"#;
    insta::assert_snapshot!(imported(file), @r#"
    Registry
    crm: http {"url":"https://${tenant}.example.com/mcp","headers":{"Authorization":"Bearer ${api_key}"}}
    secret: api_key
    secret: tenant
    "#);
}

#[test]
fn what_cannot_be_used_is_refused_where_it_is_wrong() {
    for (file, refusal) in [
        ("{}", "refused at ``: this is none of the files"),
        (r#"{"mcpServers": []}"#, "Desktop"),
        (r#"{"mcpServers": "x"}"#, "refused at `mcpServers`"),
        (r#"{"mcpServers": {"a": "x"}}"#, "refused at `mcpServers.a`"),
        (r#"{"mcpServers": {"a": {}}}"#, "refused at `mcpServers.a.command`"),
        (r#"{"mcpServers": {"a": {"command": 7}}}"#, "refused at `mcpServers.a.command`"),
        (r#"{"mcpServers": {"a": {"command": []}}}"#, "refused at `mcpServers.a.command`"),
        (r#"{"mcpServers": {"a": {"command": "x", "url": "y"}}}"#, "refused at `mcpServers.a.url`"),
        (r#"{"mcpServers": {"a": {"command": "x", "args": "y"}}}"#, "refused at `mcpServers.a.args`"),
        (r#"{"mcpServers": {"a": {"command": "x", "args": [[]]}}}"#, "refused at `mcpServers.a.args`"),
        (r#"{"mcpServers": {"a": {"command": "x", "env": {"K": {}}}}}"#, "refused at `mcpServers.a.env.K`"),
        (r#"{"mcpServers": {"a": {"command": "x", "type": "sse"}}}"#, "refused at `mcpServers.a.command`"),
        (r#"{"mcpServers": {"a": {"url": "x", "type": "stdio"}}}"#, "refused at `mcpServers.a.url`"),
        (
            r#"{"mcpServers": {"a": {"url": "x", "type": "carrier-pigeon"}}}"#,
            "refused at `mcpServers.a.type`",
        ),
        (
            r#"{"mcpServers": {"a": {"command": "x", "disabled": "yes"}}}"#,
            "refused at `mcpServers.a.disabled`",
        ),
        (
            r#"{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}"#,
            "refused at ``: the file is not valid JSON: `a` occurs twice",
        ),
        (
            r#"{"mcpServers": {"a b": {"command": "x"}, "a?b": {"command": "y"}}}"#,
            "refused at `a-b`: two servers are called `a-b`",
        ),
        (r#"{"name": "x", "mcp": {}}"#, "refused at `mcp.servers`"),
        (r#"{"name": 7, "mcp": {"servers": {}}}"#, "refused at `name`"),
        (r#"{"name": "x", "mcp": {"servers": [{"command": "x"}]}}"#, "refused at `mcp.servers[0].name`"),
        (r#"{"name": "x", "packages": []}"#, "refused at `packages`"),
        ("not json", "refused at ``: the file is neither JSON nor TOML"),
    ] {
        assert!(imported(file).starts_with(refusal), "{file}: {}", imported(file));
    }
}

#[test]
fn whatever_a_server_is_called_it_gets_a_name() {
    for (key, name) in [
        ("naïve server", "na-ve-server"),
        ("../../etc/passwd", "etc-passwd"),
        ("", "server"),
        ("日本語", "server"),
        ("550e8400-e29b-41d4-a716-446655440000", "server-550e8400-e29b-41d4-a716-446655440000"),
        ("native", "server-native"),
    ] {
        let file = json!({"mcpServers": {key: {"command": "x"}}}).to_string();
        let declared = import(&file).unwrap();
        assert_eq!((declared.servers[0].name.as_str(), declared.warnings.len()), (name, 1), "{key}");
    }
    let long = json!({"mcpServers": {"n".repeat(5000): {"command": "x"}}}).to_string();
    assert!(import(&long).unwrap().servers[0].name.as_str().len() <= 63);
}

#[test]
fn our_own_form_in_toml_and_json() {
    let toml = r#"
        [project]
        namespacing = "conflict"
        repeat_safe_calls = true
        description = "Everything for the web team"

        [servers.time]
        command = "uvx"
        args = ["mcp-server-time", "--local-timezone", "${TZ}"]
        session = "per_client"

        [servers.crm]
        url = "https://crm.example.com/mcp"
        transport = "http"
        headers = { Authorization = "Bearer ${CRM_TOKEN}" }
        enabled = false

        [[products]]
        name = "kit"
        mcp.servers.search = { command = "npx", args = ["search", "${SEARCH_KEY}"] }
    "#;
    let declared = ours(toml).unwrap();
    insta::assert_snapshot!(told(&declared), @r#"
    crm: http {"url":"https://crm.example.com/mcp","headers":{"Authorization":"Bearer ${CRM_TOKEN}"}} (off)
    time: stdio {"command":"uvx","args":["mcp-server-time","--local-timezone","${TZ}"],"env":{},"cwd":null}
    secret: CRM_TOKEN
    secret: SEARCH_KEY
    secret: TZ
    "#);
    assert_eq!(declared.project.namespacing, Some(Namespacing::Conflict));
    assert_eq!(declared.project.repeat_safe_calls, Some(true));
    assert_eq!(declared.products[0]["name"], "kit");
    let json = r#"{"servers": {"a": {"command": "x", "session": "shared"}}, /* no products */ }"#;
    let declared = ours(json).unwrap();
    assert_eq!((declared.servers[0].session, declared.form), (SessionMode::Shared, Form::Cofer));
    assert_eq!(declared.servers[0].config.transport(), Transport::Stdio);
}

#[test]
fn in_our_own_form_everything_must_be_understood() {
    for (file, field) in [
        ("[server.a]\ncommand = 'x'", "server"),
        ("[servers.a]\ncommand = 'x'\nalwaysAllow = []", "servers"),
        ("[servers.a]\nimage = 'x'\ncommand = 'y'", "servers.a.command"),
        ("[servers.a]\nimage = 'x'\nnpx = 'y'", "servers.a.npx"),
        ("[servers.a]\nimage = 'x'\nproject = 'y'", "servers.a.project"),
        ("[servers.'a b']\nuvx = 'x'", "servers.a b"),
        ("[servers.'a b']\ncommand = 'x'", "servers"),
        ("[servers.a]\ncommand = 'x'\nsession = 'often'", "servers.a.session"),
        ("[project]\nnamespacing = 'sometimes'", "project.namespacing"),
        ("[project]\ncolour = 'red'", "project.colour"),
        ("[project]\nnamespacing = 7", "project.namespacing"),
        ("[project]\nrepeat_safe_calls = 'yes'", "project.repeat_safe_calls"),
        ("project = 7", "project"),
        ("products = 7", "products"),
        ("[[products]]\nversion = '1'", "products[0].name"),
    ] {
        assert_eq!(ours(file).unwrap_err().field, field, "{file}");
    }
}

#[test]
fn a_server_with_an_image_or_a_package_is_one_that_is_run_here() {
    let file = "[servers.elsewhere]\ncommand = 'x'\n[servers.notes]\nimage = 'notes:1'\nenvironment = { KEY = '${NOTES_KEY}' }\n\
        [servers.time]\nuvx = 'mcp-server-time'\nbase = 'python:3'\nprovider = 'docker'\nmax_in_flight = 4";
    let declared = ours(file).unwrap();
    assert_eq!(declared.servers.iter().map(|server| server.name.as_str()).collect::<Vec<_>>(), ["elsewhere"]);
    let [notes, time] = declared.hosted.as_slice() else { panic!("{:?}", declared.hosted) };
    assert_eq!(notes.package, None);
    assert_eq!(
        notes.registration,
        json!({"name": "notes", "image": "notes:1", "environment": {"KEY": "${NOTES_KEY}"}})
    );
    assert_eq!(
        time.package,
        Some(json!({"uvx": "mcp-server-time", "base": "python:3", "provider": "docker"}))
    );
    assert_eq!(time.registration, json!({"name": "time", "provider": "docker", "max_in_flight": 4}));
    assert_eq!(declared.secrets.keys().map(SecretName::as_str).collect::<Vec<_>>(), ["NOTES_KEY"]);
}
