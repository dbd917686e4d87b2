//! Values go in and never come out.

use serde_json::json;

use crate::serving;

const VALUE: &str = "hunter2-hunter2-\"quoted\"";

#[tokio::test]
async fn a_secret_is_listed_by_name_and_its_value_is_nowhere() {
    let app = serving().await;
    let path = "/api/v1/projects/default/secrets";
    let put = app.put(&format!("{path}/API_KEY"), &json!({"value": VALUE})).await;
    assert_eq!((put.status, &put.json()["name"]), (200, &json!("API_KEY")));
    let listed = app.get(path).await;
    assert_eq!(listed.json()[0]["name"], "API_KEY");

    assert_eq!(app.delete(&format!("{path}/API_KEY")).await.status, 204);
    assert_eq!(app.delete(&format!("{path}/API_KEY")).await.refusal(), "404 not_found");
    assert_eq!(app.get(path).await.json(), json!([]));
    let everything = format!("{}{}{}", put.text, listed.text, app.get("/metrics").await.text);
    let (dir, log) = (app.data_dir(), app.log());
    let _stopped = app.stop().await;
    for text in [everything, log] {
        assert!(!text.contains("hunter2"));
    }
    for file in std::fs::read_dir(dir).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains("hunter2"));
    }
}

#[tokio::test]
async fn a_refused_secret_is_not_repeated_in_the_refusal() {
    let app = crate::start().arg("--log=trace").serve().await;
    let put = async |name: &str, body: serde_json::Value| {
        app.put(&format!("/api/v1/projects/default/secrets/{name}"), &body).await
    };
    let long = VALUE.repeat(10_000);
    for (name, body, expected) in [
        ("9BAD", json!({"value": VALUE}), "422 validation_error"),
        ("A-B", json!({"value": VALUE}), "422 validation_error"),
        ("OK", json!({"value": [VALUE]}), "422 validation_error"),
        ("OK", json!({"valu": VALUE}), "422 validation_error"),
        ("OK", json!(VALUE), "422 validation_error"),
        ("OK", json!({"value": long}), "422 validation_error"),
        ("OK", json!({"value": ""}), "422 validation_error"),
    ] {
        let answer = put(name, body).await;
        assert_eq!(answer.refusal(), expected, "{name}");
        assert!(!answer.text.contains("hunter2"), "{answer:?}");
    }
    let answer = app.put("/api/v1/projects/nope/secrets/OK", &json!({"value": VALUE})).await;
    assert_eq!(answer.refusal(), "404 not_found");
    assert!(!app.log().contains("hunter2"), "not even at the most talkative level");
    app.stop().await;
}

#[tokio::test]
async fn setting_a_secret_again_and_again_takes_no_memory() {
    let app = serving().await;
    let resident = async || {
        let metrics = app.get("/metrics").await.text;
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix("process_resident_memory_bytes "))
            .unwrap()
            .to_owned();
        line.parse::<f64>().unwrap()
    };
    for n in 0..5 {
        app.put("/api/v1/projects/default/secrets/A", &json!({"value": format!("{n:065000}")})).await;
    }
    let before = resident().await;
    for n in 0..40 {
        let answer =
            app.put("/api/v1/projects/default/secrets/A", &json!({"value": format!("{n:064999}")})).await;
        assert_eq!(answer.status, 200);
    }
    let grown = resident().await - before;
    assert!(grown < 16e6, "it kept {grown} bytes");
    app.stop().await;
}
