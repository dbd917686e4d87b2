//! Which tools there are, as `tools/list` tells it. Names and arguments are those of dagger/container-use, and a few more.

use serde_json::{Map, Value, json};

use super::Offer;

/// What a tool does to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Reads,
    Writes,
    Destroys,
}

/// One argument: its name, the rest of its schema, and whether it must be there.
type Argument = (&'static str, Value, bool);

struct Tool {
    name: &'static str,
    description: &'static str,
    effect: Effect,
    arguments: Vec<Argument>,
    output: Value,
    /// Whether it works on one environment; else on a repository.
    of_environment: bool,
    /// Whether it names its environment even where there is only one.
    always_named: bool,
}

const CORE: [&str; 3] = ["environment_create", "environment_run_cmd", "environment_destroy"];

/// All tools of an offer.
pub fn listed(offer: Offer) -> Vec<Value> {
    let wanted = |tool: &Tool| !offer.core_only || CORE.contains(&tool.name);
    all().into_iter().filter(wanted).map(|tool| tool.listed(offer.single_tenant)).collect()
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn flag(description: &str) -> Value {
    json!({"type": "boolean", "description": description})
}

fn number(description: &str) -> Value {
    json!({"type": "number", "description": description})
}

fn texts(description: &str) -> Value {
    json!({"type": "array", "items": {"type": "string"}, "description": description})
}

fn numbers(description: &str) -> Value {
    json!({"type": "array", "items": {"type": "number"}, "description": description})
}

impl Tool {
    fn new(name: &'static str, effect: Effect, description: &'static str) -> Self {
        let output = json!({"type": "object"});
        Self {
            name,
            description,
            effect,
            arguments: Vec::new(),
            output,
            of_environment: true,
            always_named: false,
        }
    }

    fn takes(mut self, name: &'static str, schema: Value) -> Self {
        self.arguments.push((name, schema, false));
        self
    }

    fn needs(mut self, name: &'static str, schema: Value) -> Self {
        self.arguments.push((name, schema, true));
        self
    }

    /// Nothing of it is required: some clients hold a failure to it as well, and then there is only `error`.
    fn gives(mut self, mut properties: Value) -> Self {
        properties["error"] = json!({"type": "object", "description": "Why it failed, and what to do next."});
        self.output = json!({"type": "object", "properties": properties});
        self
    }

    fn of_repository(mut self) -> Self {
        self.of_environment = false;
        self
    }

    fn always_named(mut self) -> Self {
        self.always_named = true;
        self
    }

    fn listed(self, single_tenant: bool) -> Value {
        let named = !single_tenant || self.always_named;
        let explanation = text("One sentence explanation for why this tool is being called.");
        let mut common: Vec<Argument> = vec![("explanation", explanation, false)];
        if named || !self.of_environment {
            common.push((
                "environment_source",
                text("Absolute path to the source git repository for the environment."),
                true,
            ));
        }
        if named && self.of_environment {
            common.push((
                "environment_id",
                text("The ID of the environment for this command. Must call `environment_create` first."),
                true,
            ));
        }
        let mut properties = Map::new();
        let mut required = Vec::new();
        for (name, schema, is_required) in common.into_iter().chain(self.arguments) {
            properties.insert(name.to_owned(), schema);
            if is_required {
                required.push(name);
            }
        }
        json!({
            "name": self.name,
            "description": self.description,
            "inputSchema": {"type": "object", "properties": properties, "required": required},
            "outputSchema": self.output,
            "annotations": {
                "readOnlyHint": self.effect == Effect::Reads,
                "destructiveHint": self.effect == Effect::Destroys,
                "idempotentHint": self.effect == Effect::Reads,
                "openWorldHint": self.name == "environment_run_cmd",
            },
        })
    }
}

fn environment() -> Value {
    json!({
        "id": {"type": "string"},
        "title": {"type": "string"},
        "config": {"type": "object"},
        "remote_ref": {"type": "string"},
        "checkout_command": {"type": "string"},
        "log_command": {"type": "string"},
        "diff_command": {"type": "string"},
        "services": {"type": "array"},
    })
}

fn changed_file() -> Value {
    json!({
        "target_file": {"type": "string"},
        "commit": {"type": ["string", "null"], "description": "null if nothing differed."},
        "warnings": {"type": "array", "items": {"type": "string"}},
    })
}

fn all() -> Vec<Tool> {
    let mut tools = about_environments();
    tools.extend(about_commands());
    tools.extend(about_files());
    tools.extend(about_the_rest());
    tools
}

fn about_environments() -> Vec<Tool> {
    use Effect::{Destroys, Reads, Writes};
    vec![
        Tool::new("environment_create", Writes, "Creates a new development environment: a git worktree on a branch of its own, mounted into a container. \
            The environment is the result of the commits of its source; uncommitted changes are not in it. Read carefully the instructions to understand the environment.")
            .of_repository()
            .needs("title", text("Short description of the work that is happening in this environment."))
            .takes("from_git_ref", text("Git reference to create the environment from: a branch, a tag, a remote's branch or a commit. Defaults to HEAD."))
            .takes("image", text("Container image. Defaults to what the repository's configuration says."))
            .takes("environment_id", text("An id of your choice: small letters, digits and hyphens. Made up if left out."))
            .takes("allow_replace", flag("Destroy an environment of the same id first, instead of refusing."))
            .gives(environment()),
        Tool::new("environment_open", Reads, "Opens an existing environment. Return format is same as environment_create.")
            .always_named()
            .gives(environment()),
        Tool::new("environment_update_metadata", Writes, "Updates environment metadata such as title. This will update the environment's metadata without restarting it.")
            .takes("title", text("Updated title describing the work being done in this environment."))
            .gives(environment()),
        Tool::new("environment_config", Writes, "Make environment config changes such as base image and setup commands. If the environment is missing any tools or instructions, \
            you MUST call this function to update the environment. The container is made anew; what is in the worktree stays.")
            .needs("config", json!({
                "type": "object",
                "properties": {
                    "base_image": text("Base image of the environment."),
                    "setup_commands": texts("Commands that set the environment up, such as installing packages."),
                    "install_commands": texts("Commands that install the project's dependencies."),
                    "envs": texts("Variables as NAME=value."),
                    "caches": texts("Folders that all environments of this repository share, such as /var/cache/pip."),
                },
            }))
            .gives(environment()),
        Tool::new("environment_list", Reads, "List available environments")
            .of_repository()
            .gives(json!({"environments": {"type": "array", "items": {"type": "object"}}})),
        Tool::new("environment_destroy", Destroys, "Destroys an environment: ends its containers and removes its worktree and its branch. What was not merged, applied or checked out is lost.")
            .takes("force", flag("Try again by other means where removing files fails."))
            .gives(json!({
                "environment_id": {"type": "string"},
                "removed_paths": {"type": "array", "items": {"type": "string"}},
                "stopped_containers": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "string"}, "ended": {"enum": ["exited", "terminated", "killed"]}}}},
                "warnings": {"type": "array", "items": {"type": "string"}},
            })),
    ]
}

fn about_commands() -> Vec<Tool> {
    use Effect::{Destroys, Reads, Writes};
    vec![
        Tool::new("environment_run_cmd", Writes, "Run a terminal command inside the environment. Files that it changes in /workdir are committed. \
            It is ended, with all that it started, when it takes too long. Use `background` for servers; they run in a container of their own.")
            .takes("command", text("The terminal command to execute. If empty, the image's default command is used."))
            .takes("shell", json!({"type": "string", "description": "The shell that will be interpreting this command (default: sh)", "default": "sh"}))
            .takes("use_entrypoint", flag("Use the image's entrypoint, if present, by prepending it to the args."))
            .takes("background", flag("Run the command in the background and return when it serves its ports."))
            .takes("ports", numbers("Ports to expose. Only works with background environments. Each is reached from inside the environment and from the user's machine."))
            .gives(json!({
                "mode": {"enum": ["foreground", "background"]},
                "exit_code": {"type": ["integer", "null"]},
                "signal": {"type": ["integer", "null"]},
                "stdout": {"type": "string", "description": "The last 512 lines."},
                "stderr": {"type": "string", "description": "The last 512 lines."},
                "truncated": {"type": "boolean"},
                "elapsed_ms": {"type": "integer"},
                "commit": {"type": ["string", "null"]},
                "background_id": {"type": "string"},
                "endpoints": {"type": "object"},
                "warnings": {"type": "array", "items": {"type": "string"}},
            })),
        Tool::new("environment_background_list", Reads, "List the background commands of an environment, and whether they still run.")
            .gives(json!({"background": {"type": "array", "items": {"type": "object"}}})),
        Tool::new("environment_background_read", Reads, "Read the end of what a background command has printed.")
            .needs("background_id", text("As `environment_run_cmd` told it."))
            .takes("tail", number("How many lines, 512 at most."))
            .gives(json!({"background_id": {"type": "string"}, "output": {"type": "string"}, "truncated": {"type": "boolean"}})),
        Tool::new("environment_background_stop", Destroys, "End a background command with all that it started.")
            .needs("background_id", text("As `environment_run_cmd` told it."))
            .gives(json!({"background_id": {"type": "string"}, "ended": {"type": ["string", "null"]}})),
    ]
}

fn about_files() -> Vec<Tool> {
    use Effect::{Destroys, Reads, Writes};
    let target = || text("Path of the file, absolute or relative to the workdir.");
    vec![
        Tool::new(
            "environment_file_read",
            Reads,
            "Read the contents of a file, specifying a line range or the entire file.",
        )
        .needs("target_file", target())
        .takes("should_read_entire_file", flag("Whether to read the entire file. Defaults to false."))
        .takes(
            "start_line_one_indexed_inclusive",
            number("The one-indexed line number to start reading from (inclusive)."),
        )
        .takes(
            "end_line_one_indexed_inclusive",
            number("The one-indexed line number to end reading at (inclusive)."),
        )
        .gives(json!({"content": {"type": "string"}})),
        Tool::new("environment_file_list", Reads, "List the contents of a directory")
            .needs(
                "path",
                text("Path of the directory to list contents of, absolute or relative to the workdir."),
            )
            .gives(json!({"entries": {"type": "array", "items": {"type": "string"}}})),
        Tool::new("environment_file_write", Writes, "Write the contents of a file.")
            .needs("target_file", target())
            .needs("contents", text("Full text content of the file you want to write."))
            .gives(changed_file()),
        Tool::new("environment_file_edit", Writes, "Find and replace text in a file.")
            .needs("target_file", target())
            .needs("search_text", text("The text to find and replace."))
            .needs("replace_text", text("The text to insert."))
            .takes("which_match", text("The ID of the match to replace, if there were multiple matches."))
            .gives(changed_file()),
        Tool::new("environment_file_delete", Destroys, "Deletes a file at the specified path.")
            .needs("target_file", target())
            .gives(changed_file()),
    ]
}

fn about_the_rest() -> Vec<Tool> {
    use Effect::{Reads, Writes};
    vec![
        Tool::new("environment_add_service", Writes, "Add a service to the environment, e.g. a database. It is reached by its name.")
            .needs("name", text("The name of the service to start."))
            .needs("image", text("The image of the service to start."))
            .takes("command", text("The command to start the service. If not provided the image default command will be used."))
            .takes("ports", numbers("Ports to expose. For each port, returns the container_internal (for use inside environments) and host_external (for use by the user) addresses."))
            .takes("envs", texts("The environment variables to set (e.g. [\"FOO=bar\", \"BAZ=qux\"])."))
            .gives(json!({"config": {"type": "object"}, "endpoints": {"type": "object"}})),
        Tool::new("environment_checkpoint", Writes, "Checkpoints an environment in its current state to a container image.")
            .needs("destination", text("Container image destination to checkpoint to (e.g. registry.example.com/org/image:tag)"))
            .gives(json!({"image": {"type": "string"}})),
        Tool::new("environment_log", Reads, "The commits of an environment with the commands that were run.")
            .always_named()
            .takes("patch", flag("Show each commit's patch."))
            .gives(json!({"log": {"type": "string"}})),
        Tool::new("environment_diff", Reads, "What an environment changed, as a unified diff.")
            .always_named()
            .gives(json!({"diff": {"type": "string"}})),
    ]
}
