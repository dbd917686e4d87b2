//! The conformance suite's scenarios of authorization for clients: Cofer is the client, and a person's browser follows its redirects.
//!
//! Three kinds of scenario cannot apply, because nobody could configure Cofer for them: client credentials, enterprise-managed
//! authorization and workload identity are extensions for clients that act without a person, and `DPoP` is a draft.

use std::process::Stdio;

use cofer_testkit::engines;
use tokio::process::Command;

use super::script;

/// Runs one scenario, speaking this version of MCP, and fails with the whole report if anything in it is wrong.
async fn passes(scenario: &str, version: &str) {
    let Some(tools) = engines::tools() else { return };
    let results = tempfile::tempdir().unwrap();
    let node = tools.join("bin/node");
    let client = format!("{} {}", node.display(), script("conformance-client.mjs").display());
    let mut suite = Command::new(tools.join("bin/conformance-next"));
    suite.args(["client", "--command", &client, "--scenario", scenario, "--spec-version", version]);
    // What a later version asks of a login is asked of this one, too.
    suite.args(["--force", "-o"]).arg(results.path()).env("COFER", env!("CARGO_BIN_EXE_cofer"));
    let report = suite.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&report.stdout), String::from_utf8_lossy(&report.stderr));
    assert!(report.status.success(), "{scenario}: {said}");
    assert!(said.contains("0 failed, 0 warnings") && said.contains("OVERALL: PASSED"), "{scenario}: {said}");
}

/// A test for each scenario in each era of the protocol, so that they run beside each other and each is named.
macro_rules! scenarios {
    ($($name:ident: $scenario:literal),+ $(,)?) => {
        mod with_a_handshake {
            $(#[tokio::test]
            async fn $name() {
                super::passes($scenario, "2025-11-25").await;
            })+
        }
        mod standing_alone {
            $(#[tokio::test]
            async fn $name() {
                super::passes($scenario, "2026-07-28").await;
            })+
        }
    };
}

scenarios! {
    metadata_at_the_usual_place: "auth/metadata-default",
    metadata_by_openid: "auth/metadata-var1",
    metadata_at_the_root_and_of_a_tenant: "auth/metadata-var2",
    metadata_where_the_server_says: "auth/metadata-var3",
    metadata_of_another_issuer: "auth/metadata-issuer-mismatch",
    a_server_with_anothers_name: "auth/resource-mismatch",
    a_document_for_a_client_id: "auth/basic-cimd",
    a_client_that_an_operator_registered: "auth/pre-registration",
    a_password_in_the_header: "auth/token-endpoint-auth-basic",
    a_password_in_the_form: "auth/token-endpoint-auth-post",
    no_password: "auth/token-endpoint-auth-none",
    another_authorization_server: "auth/authorization-server-migration",
    scope_as_the_server_asks: "auth/scope-from-www-authenticate",
    scope_as_its_description_says: "auth/scope-from-scopes-supported",
    no_scope_where_nobody_says: "auth/scope-omitted-when-undefined",
    a_step_up: "auth/scope-step-up",
    no_step_up_without_end: "auth/scope-retry-limit",
    tokens_that_renew_themselves: "auth/offline-access-scope",
    tokens_that_do_not: "auth/offline-access-not-supported",
    an_answer_that_says_whose_it_is: "auth/iss-supported",
    an_answer_that_need_not_say_whose_it_is: "auth/iss-not-advertised",
    an_answer_that_should_say_whose_it_is: "auth/iss-supported-missing",
    an_answer_of_somebody_else: "auth/iss-wrong-issuer",
    an_unexpected_answer_of_somebody_else: "auth/iss-unexpected",
    an_answer_of_almost_the_same: "auth/iss-normalized",
}

#[tokio::test]
async fn metadata_as_of_2025_03_26() {
    passes("auth/2025-03-26-oauth-metadata-backcompat", "2025-03-26").await;
}

#[tokio::test]
async fn the_usual_endpoints_as_of_2025_03_26() {
    passes("auth/2025-03-26-oauth-endpoint-fallback", "2025-03-26").await;
}
