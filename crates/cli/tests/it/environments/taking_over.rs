//! An environment's work in the user's own hands: checked out, merged, applied; whatever happens, nothing is lost.

use std::os::unix::fs::PermissionsExt as _;

use super::{Place, on_each_engine};

on_each_engine!(
    a_branch_follows_an_environment,
    what_is_merged_is_there_with_its_history,
    two_that_changed_the_same_file_conflict_as_git_shows_it_and_nothing_is_lost,
    what_is_applied_is_for_the_user_to_commit,
    files_of_any_name_and_content_come_across,
    without_an_id_the_only_one_that_goes_on_from_here_is_meant,
    hooks_of_the_user_run_for_the_user_alone,
    a_hook_that_hangs_is_ended_and_one_that_asks_gets_no_answer,
);

async fn a_branch_follows_an_environment(place: Place) {
    place.made("here").await;
    place.run_in("here", "echo four >> README.md").await;
    let taken = place.env(&["checkout", "here", "--json"]).await;
    taken.succeeded();
    assert_eq!(taken.json()["branch"], "cofer-here");
    assert_eq!(place.git(&["branch", "--show-current"]), "cofer-here");
    assert_eq!(place.git(&["rev-parse", "--abbrev-ref", "@{upstream}"]), "cofer/here");
    assert!(place.git(&["show", "HEAD:README.md"]).ends_with("four"));

    // Changes that nobody committed come along.
    std::fs::write(place.path.join("mine.txt"), "mine").unwrap();
    place.git(&["add", "mine.txt"]);
    place.run_in("here", "echo five >> README.md").await;
    place.git(&["checkout", "--quiet", "main"]);
    place.env(&["checkout", "here"]).await.succeeded();
    assert!(place.git(&["show", "HEAD:README.md"]).ends_with("five"));
    assert_eq!(place.git(&["status", "--porcelain"]), "A  mine.txt");

    // Commits of the user's own are not thrown away.
    place.git(&["commit", "--quiet", "--message", "mine"]);
    place.env(&["checkout", "here"]).await.succeeded();
    place.run_in("here", "echo six >> README.md").await;
    let refused = place.env(&["checkout", "here"]).await;
    assert!(refused.failed_with(4).contains("commits of its own"), "{refused:?}");
    assert_eq!(place.git(&["log", "-1", "--format=%s"]), "mine");
    place.env(&["checkout", "here", "-b", "other/name"]).await.succeeded();
    assert_eq!(place.git(&["branch", "--show-current"]), "other/name");
    assert!(place.git(&["show", "HEAD:README.md"]).ends_with("six"));

    // What a checkout would overwrite stays, and git's reason is told.
    place.git(&["checkout", "--quiet", "main"]);
    std::fs::write(place.path.join("README.md"), "precious").unwrap();
    let refused = place.env(&["checkout", "here", "-b", "third"]).await;
    assert!(refused.failed_with(4).contains("would be overwritten"), "{refused:?}");
    assert_eq!(std::fs::read_to_string(place.path.join("README.md")).unwrap(), "precious");
    place.cleared().await;
}

async fn what_is_merged_is_there_with_its_history(place: Place) {
    place.made("here").await;
    place.env(&["run", "here", "-m", "Add four", "echo four >> README.md"]).await.succeeded();
    // What was changed behind Cofer's back belongs to the work as well.
    std::fs::write(place.path.join(".cofer/worktrees/here/late.txt"), "late").unwrap();
    std::fs::write(place.path.join("unrelated.txt"), "mine").unwrap();
    place.git(&["add", "unrelated.txt"]);
    let merged = place.env(&["merge", "here", "-d"]).await;
    assert!(merged.succeeded().ends_with("environment here destroyed"), "{merged:?}");
    assert_eq!(place.git(&["log", "-1", "--format=%s %P"]).split(' ').count(), 5);
    assert!(place.git(&["log", "--format=%s"]).starts_with("Merge environment here\n"));
    assert!(place.git(&["log", "--format=%s"]).contains("Add four"));
    assert_eq!(place.git(&["show", "HEAD:late.txt"]), "late");
    assert_eq!(place.git(&["status", "--porcelain"]), "A  unrelated.txt");
    assert_eq!(place.traces(), Vec::<String>::new());
}

async fn two_that_changed_the_same_file_conflict_as_git_shows_it_and_nothing_is_lost(place: Place) {
    place.made("left").await;
    place.made("right").await;
    place.run_in("left", "sed -i s/two/LEFT/ README.md").await;
    place.run_in("right", "sed -i s/two/RIGHT/ README.md; echo right > right.txt").await;
    std::fs::write(place.path.join("mine.txt"), "mine").unwrap();
    place.git(&["add", "mine.txt"]);
    place.env(&["merge", "left"]).await.succeeded();
    let conflict = place.env(&["merge", "right", "-d"]).await;
    let said = conflict.failed_with(4);
    assert!(said.contains("CONFLICT (content): Merge conflict in README.md"), "{conflict:?}");
    assert!(said.contains("git merge --abort"), "{conflict:?}");
    let file = std::fs::read_to_string(place.path.join("README.md")).unwrap();
    assert!(file.contains("<<<<<<<") && file.contains("LEFT") && file.contains("RIGHT"), "{file}");
    // The environment is there still, and so is what the user had not committed.
    assert_eq!(place.env(&["list", "-q"]).await.succeeded(), "left\nright");
    place.env(&["merge", "right"]).await.failed_with(4);
    place.git(&["merge", "--abort"]);
    assert_eq!(place.git(&["status", "--porcelain"]), "A  mine.txt");
    assert_eq!(place.git(&["log", "-1", "--format=%s"]), "Merge environment left");

    // The same with `apply`, which git undoes in another way.
    let conflict = place.env(&["apply", "right"]).await;
    let said = conflict.failed_with(4);
    assert!(said.contains("CONFLICT") && said.contains("git reset --merge"), "{conflict:?}");
    place.git(&["reset", "--quiet", "--merge"]);
    let mine = place.git(&["stash", "list"]);
    if !mine.is_empty() {
        place.git(&["stash", "pop", "--quiet", "--index"]);
    }
    assert_eq!(place.git(&["status", "--porcelain"]), "A  mine.txt", "{mine}");
    assert!(place.env(&["diff", "right"]).await.succeeded().contains("+RIGHT"));
    place.cleared().await;
}

async fn what_is_applied_is_for_the_user_to_commit(place: Place) {
    place.made("here").await;
    place.run_in("here", "echo four >> README.md").await;
    place.run_in("here", "echo new > new.txt").await;
    let before = place.git(&["rev-parse", "HEAD"]);
    place.env(&["apply", "--delete", "here"]).await.succeeded();
    assert_eq!(place.git(&["rev-parse", "HEAD"]), before);
    assert_eq!(place.git(&["status", "--porcelain"]), "M  README.md\nA  new.txt");
    assert_eq!(place.traces(), Vec::<String>::new());
}

async fn files_of_any_name_and_content_come_across(place: Place) {
    const NAMES: [&str; 7] =
        ["with space", "it's \"quoted\"", "two\nlines", "ünï 漢字 🦆", "-dash", "back\\slash", ":(exclude)x"];
    place.made("here").await;
    for name in NAMES {
        place
            .env(&["run", "here", "--", "sh", "-c", "printf '\\377\\000%s' \"$1\" > \"./$1\"", "sh", name])
            .await
            .succeeded();
    }
    let listed = place.env(&["show", "here", "--json"]).await.json();
    assert_eq!(listed["changed_files"], NAMES.len());
    // What is piped can be applied, byte for byte.
    let patch =
        place.start.command(&["env", "diff", "here", "-C", place.source()]).output().await.unwrap().stdout;
    let file = place.start.path().join("patch");
    std::fs::write(&file, patch).unwrap();
    place.git(&["apply", "--check", file.to_str().unwrap()]);
    place.env(&["merge", "here"]).await.succeeded();
    for name in NAMES {
        let bytes = std::fs::read(place.path.join(name)).unwrap();
        assert_eq!(bytes, [b"\xff\0", name.as_bytes()].concat(), "{name:?}");
    }
    assert_eq!(place.git(&["status", "--porcelain"]), "");
    place.cleared().await;
}

async fn without_an_id_the_only_one_that_goes_on_from_here_is_meant(place: Place) {
    let none = place.env(&["log"]).await;
    assert!(none.failed_with(3).contains("cofer env list"), "{none:?}");
    place.made("first").await;
    place.run_in("first", "echo four >> README.md").await;
    for verb in ["log", "diff", "show"] {
        assert!(place.env(&[verb]).await.succeeded().contains("four"), "{verb}");
    }
    place.made("second").await;
    for verb in ["log", "diff", "show", "checkout", "merge", "apply"] {
        let which = place.env(&[verb]).await;
        let said = which.failed_with(2);
        assert!(said.contains("first  the work of first") && said.contains("second"), "{verb}: {which:?}");
    }
    place.env(&["checkout", "first"]).await.succeeded();
    // Only the first has what is checked out now.
    assert!(place.env(&["show"]).await.succeeded().contains("cofer/first"));
    place.git(&["checkout", "--quiet", "main"]);
    place.cleared().await;
}

async fn hooks_of_the_user_run_for_the_user_alone(place: Place) {
    for hook in
        ["pre-commit", "post-commit", "post-checkout", "post-merge", "pre-push", "reference-transaction"]
    {
        let file = place.path.join(".git/hooks").join(hook);
        std::fs::write(
            &file,
            format!("#!/bin/sh\necho {hook} >> \"$(git rev-parse --show-toplevel)/../hooks\"\n"),
        )
        .unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let record = place.path.parent().unwrap().join("hooks");
    place.made("here").await;
    place.run_in("here", "echo four >> README.md").await;
    place.env(&["log", "here"]).await.succeeded();
    assert!(!record.exists(), "{:?}", std::fs::read_to_string(&record));
    place.env(&["merge", "here"]).await.succeeded();
    let ran = std::fs::read_to_string(&record).unwrap();
    assert!(ran.contains("post-merge"), "{ran}");
    std::fs::remove_file(&record).unwrap();
    place.cleared().await;
    assert!(!record.exists(), "{:?}", std::fs::read_to_string(&record));
}

async fn a_hook_that_hangs_is_ended_and_one_that_asks_gets_no_answer(place: Place) {
    place.made("here").await;
    place.run_in("here", "echo four >> README.md").await;
    let hook = place.path.join(".git/hooks/pre-merge-commit");
    std::fs::write(&hook, "#!/bin/sh\nread answer; echo \"answer: $answer\" >&2; exec sleep 1000\n").unwrap();
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    let place = place.with("COFER_TIMEOUT_GIT", "3000");
    let late = place.env(&["merge", "here"]).await;
    assert!(late.failed_with(6).contains("COFER_TIMEOUT_GIT"), "{late:?}");
    assert!(!place.path.join(".git/index.lock").exists(), "git took its lock with it");
    std::fs::remove_file(&hook).unwrap();
    // As after Ctrl-C in a merge by hand.
    assert_eq!(place.git(&["status", "--porcelain"]), "M  README.md");
    place.git(&["reset", "--quiet", "--merge"]);
    place.env(&["merge", "here"]).await.succeeded();
    place.cleared().await;
}
