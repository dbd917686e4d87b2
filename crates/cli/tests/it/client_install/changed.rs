//! What others wrote, before and after.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use cofer_testkit::app::Ran;

use super::{OTHERS, files_in, home, read, token_in, tokens_of_clients, told_alike, with_cursor, write};
use crate::{serving, start};

#[tokio::test]
async fn installing_twice_changes_nothing() {
    let (start, file) = with_cursor(OTHERS);
    start.cofer(&["client", "install", "cursor"]).await.succeeded();
    let once = read(&file);
    let again = start.cofer(&["client", "install", "cursor"]).await;
    assert!(again.succeeded().starts_with("nothing to do"), "{again:?}");
    assert_eq!(read(&file), once);
    assert_eq!(
        files_in(file.parent().unwrap()),
        ["mcp.json", "mcp.json.cofer-backup", "mcp.json.cofer-history"]
    );
}

#[tokio::test]
async fn what_others_wrote_stays_and_a_backup_is_named() {
    let (start, file) = with_cursor(OTHERS);
    let backup = file.with_file_name("mcp.json.cofer-backup");
    let said = start.cofer(&["client", "install", "cursor"]).await;
    assert!(said.succeeded().contains(&backup.display().to_string()), "{said:?}");
    assert_eq!(read(&backup), OTHERS);
    insta::assert_snapshot!(told_alike(&read(&file), start.path()), @r#"
    {
      // mine
      "mcpServers": {
        "files": {"command": "npx"},
        "cofer": {
          "command": "/bin/cofer",
          "args": ["stdio", "--project", "default", "--data-dir", "~/data"]
        }
      },
      "theme": "dark"
    }
    "#);
}

#[tokio::test]
async fn an_entry_of_somebody_else_is_a_conflict_unless_forced() {
    let text = r#"{"mcpServers": {"cofer": {"command": "other"}}}"#;
    let (start, file) = with_cursor(text);
    let taken = start.cofer(&["client", "install", "cursor"]).await;
    assert!(taken.failed_with(4).contains("--force"), "{taken:?}");
    start.cofer(&["client", "uninstall", "cursor"]).await.failed_with(4);
    assert_eq!(read(&file), text);
    start.cofer(&["client", "install", "cursor", "--force"]).await.succeeded();
    assert!(!read(&file).contains("other"));
    start.cofer(&["client", "install", "cursor", "--environments"]).await.succeeded();
    assert!(!read(&file).contains("--project"), "what is ours is replaced");
}

#[tokio::test]
async fn undoing_goes_back_step_by_step() {
    let (start, file) = with_cursor(OTHERS);
    let undo = ["client", "undo", "cursor"];
    assert!(start.cofer(&undo).await.failed_with(3).contains("nothing to undo"));
    start.cofer(&["client", "install", "cursor"]).await.succeeded();
    let installed = read(&file);
    start.cofer(&["client", "uninstall", "cursor"]).await.succeeded();
    assert!(!read(&file).contains("stdio"));
    start.cofer(&undo).await.succeeded();
    assert_eq!(read(&file), installed);
    start.cofer(&undo).await.succeeded();
    assert_eq!(read(&file), OTHERS);
    start.cofer(&undo).await.failed_with(3);
    assert_eq!(files_in(file.parent().unwrap()), ["mcp.json"], "nothing of ours is left");
    start.cofer(&["client", "install", "vscode"]).await.succeeded();
    assert!(start.cofer(&["client", "undo", "vscode"]).await.succeeded().contains("is gone"));
    assert_eq!(files_in(&start.path().join(".config/Code/User")), [""; 0]);
}

#[tokio::test]
async fn undoing_is_refused_when_somebody_changed_the_file_since() {
    let (start, file) = with_cursor(OTHERS);
    start.cofer(&["client", "install", "cursor"]).await.succeeded();
    let changed = read(&file).replace("dark", "light");
    write(&file, &changed);
    let refused = start.cofer(&["client", "undo", "cursor"]).await;
    assert!(refused.failed_with(4).contains("cofer client uninstall cursor"), "{refused:?}");
    assert_eq!(read(&file), changed);
    start.cofer(&["client", "uninstall", "cursor"]).await.succeeded();
    assert!(read(&file).contains("light") && !read(&file).contains("stdio"));
}

#[tokio::test]
async fn uninstalling_takes_out_our_entry_alone_and_revokes_its_token() {
    let app = serving().await;
    let file = home(&app).join(".cursor/mcp.json");
    write(&file, OTHERS);
    app.cofer(&["client", "install", "cursor", "--http"]).await.succeeded();
    let first = token_in(&read(&file)).to_owned();
    let again = app.cofer(&["client", "install", "cursor", "--http"]).await;
    again.succeeded();
    let second = token_in(&read(&file)).to_owned();
    let status =
        async |token: &str| app.call(reqwest::Method::GET, "/api/v1/projects", token, None).await.status;
    assert_eq!((status(&first).await, status(&second).await), (401, 403), "{again:?}");
    let gone = app.cofer(&["client", "uninstall", "cursor"]).await;
    gone.succeeded();
    assert_eq!(status(&second).await, 401, "{gone:?}");
    let file_now = read(&file);
    assert!(file_now.contains("// mine") && file_now.contains("files") && !file_now.contains("cofer"));
    assert!(app.cofer(&["client", "uninstall", "cursor"]).await.failed_with(3).contains("client ls"));
    app.cofer(&["client", "install", "cursor", "--http"]).await.succeeded();
    let third = token_in(&read(&file)).to_owned();
    app.cofer(&["client", "undo", "cursor"]).await.succeeded();
    assert_eq!((status(&third).await, read(&file)), (401, file_now));
    assert_eq!(tokens_of_clients(&app).await, [""; 0]);
    app.stop().await;
}

#[tokio::test]
async fn a_link_stays_a_link_and_what_is_behind_it_is_changed() {
    let start = start();
    let (real, link) = (start.path().join("dotfiles/cursor.json"), start.path().join(".cursor/mcp.json"));
    write(&real, OTHERS);
    std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::fs::create_dir(link.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("../dotfiles/cursor.json", &link).unwrap();
    start.cofer(&["client", "install", "cursor"]).await.succeeded();
    assert!(link.is_symlink() && read(&real).contains("stdio"));
    assert_eq!(std::fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(files_in(real.parent().unwrap()).contains(&"cursor.json.cofer-backup".to_owned()));
    start.cofer(&["client", "undo", "cursor"]).await.succeeded();
    assert!(link.is_symlink());
    assert_eq!(read(&real), OTHERS);
}

#[tokio::test]
async fn a_dry_run_shows_the_difference_and_changes_nothing() {
    let app = serving().await;
    let file = home(&app).join(".cursor/mcp.json");
    write(&file, OTHERS);
    let shown = app.cofer(&["client", "install", "cursor", "--dry-run"]).await;
    insta::assert_snapshot!(told_alike(shown.succeeded(), &home(&app)), @r#"
    --- ~/.cursor/mcp.json
    +++ ~/.cursor/mcp.json
    @@ -2,3 +2,9 @@
       // mine
    -  "mcpServers": {"files": {"command": "npx"}},
    +  "mcpServers": {
    +    "files": {"command": "npx"},
    +    "cofer": {
    +      "command": "/bin/cofer",
    +      "args": ["stdio", "--project", "default", "--data-dir", "~/data"]
    +    }
    +  },
       "theme": "dark"
    "#);
    let shown = app.cofer(&["client", "install", "cursor", "--http", "--dry-run", "--json"]).await.json();
    assert!(shown["difference"].as_str().unwrap().contains("Bearer cofer_…"), "{shown}");
    assert_eq!(shown["outcome"], "shown");
    app.cofer(&["client", "install", "gemini", "--dry-run"]).await.succeeded();
    assert!(!home(&app).join(".gemini").exists());
    assert_eq!((read(&file).as_str(), files_in(file.parent().unwrap()).len()), (OTHERS, 1));
    assert_eq!(tokens_of_clients(&app).await, [""; 0]);
    app.cofer(&["client", "install", "cursor", "--http"]).await.succeeded();
    let token = token_in(&read(&file)).to_owned();
    let shown = app.cofer(&["client", "uninstall", "cursor", "--dry-run"]).await;
    assert!(!shown.succeeded().contains(&token), "{shown:?}");
    app.stop().await;
}

#[tokio::test]
async fn a_file_that_cannot_be_understood_is_refused_with_the_place_and_left_alone() {
    for (text, place) in [
        ("{\n  \"a\": 1\n  \"b\": 2\n}", "line 2, column 9"),
        ("{\"mcpServers\": []}", "`mcpServers` is not an object"),
    ] {
        let (start, file) = with_cursor(text);
        let refused = start.cofer(&["client", "install", "cursor"]).await;
        assert!(refused.failed_with(2).contains(place), "{refused:?}");
        assert_eq!((read(&file).as_str(), files_in(file.parent().unwrap()).len()), (text, 1));
    }
}

#[tokio::test]
async fn a_token_that_could_not_be_written_down_is_revoked() {
    let app = serving().await;
    // A file where the folder should be.
    std::fs::write(home(&app).join(".cursor"), "").unwrap();
    let failed = app.cofer(&["client", "install", "cursor", "--http"]).await;
    assert!(failed.failed_with(4).contains(".cursor/mcp.json"), "{failed:?}");
    assert_eq!(tokens_of_clients(&app).await, [""; 0]);
    app.stop().await;
}

#[tokio::test]
async fn what_cannot_work_is_told_before_anything_is_written() {
    let app = serving().await;
    app.cofer(&["client", "install", "cursor", "--project", "nope"]).await.failed_with(3);
    app.cofer(&["client", "install", "cursor", "--project", "nope", "--http"]).await.failed_with(3);
    app.cofer(&["client", "install", "emacs"]).await.failed_with(2);
    app.cofer(&["client", "install", "cursor", "--name", "a b"]).await.failed_with(2);
    let elsewhere = app.cofer(&["client", "install", "cursor", "--url", &app.url]).await;
    assert!(elsewhere.failed_with(2).contains("--http"), "{elsewhere:?}");
    let homeless = app.cofer_with(&[("HOME", "")], &["client", "ls"]).await;
    assert!(homeless.failed_with(2).contains("HOME"), "{homeless:?}");
    assert!(!home(&app).join(".cursor").exists());
    app.stop().await;
    let alone = start();
    alone.cofer(&["client", "install", "cursor", "--http"]).await.failed_with(6);
}

#[tokio::test]
async fn a_home_directory_whose_name_is_no_text_is_one_all_the_same() {
    let start = start();
    let home = start.path().join(std::ffi::OsStr::from_bytes(b"home-\xff"));
    for args in [
        &["client", "install", "cursor", "--json"][..],
        &["client", "ls", "--json"],
        &["client", "uninstall", "cursor", "--json"],
        &["client", "undo", "cursor", "--json"],
    ] {
        let mut command = start.command(args);
        let ran: Ran = command.env("HOME", &home).output().await.unwrap().into();
        ran.succeeded();
        assert!(ran.stdout.contains(".cursor/mcp.json"), "{ran:?}");
    }
    assert!(read(&home.join(".cursor/mcp.json")).contains("stdio"));
}
