//! A workshop and the rest of the world: whose files they are, who may be reached, what becomes an image, and what a hostile container can do.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use cofer_model::{Kind, NetworkMode, ProviderName};
use cofer_sandbox::{Changed, Owner, Provider as _, Rights, SandboxError, Stdio};
use cofer_testkit::until;
use secrecy::SecretString;
use uuid::Uuid;

use crate::bed::{BUSYBOX, Bed, no_progress};
use crate::workbench::{Workbench, exited};

conformance! {
    files_are_given_to_the_hosts_user_and_links_are_not_followed,
    a_directory_is_wiped_and_what_its_links_name_is_not,
    commands_run_as_the_user_that_was_asked_for,
    ordinary_rights_are_those_that_installing_takes,
    a_socket_that_became_a_link_is_not_followed_and_commands_still_run,
    garbage_at_the_door_of_the_helper_disturbs_nobody,
    services_are_reached_by_name_and_there_is_a_way_out,
    a_network_belongs_to_its_owner_and_is_removed_when_nobody_is_on_it,
    an_image_tells_how_it_starts,
    a_checkpoint_has_the_files_and_nothing_of_ours,
    a_checkpoint_that_cannot_be_pushed_says_so_and_is_there,
    a_helper_that_cannot_run_is_told_and_leaves_nothing,
    a_launch_that_is_dropped_takes_its_container_away,
    the_socket_is_for_the_owner_of_the_channel_alone,
}

async fn files_are_given_to_the_hosts_user_and_links_are_not_followed(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let script =
        "mkdir -p a/b; echo 1 >a/b/c; echo 2 >/tmp/outside; ln -s /tmp/outside link; ln -s /tmp away";
    assert_eq!(bench.run(script).await.end, exited(0));
    let done = bench.workshop.own("/workdir", 1234, 2345).await.unwrap();
    assert_eq!(done, Changed { changed: 6, failed: 0 });
    for name in ["", "a", "a/b", "a/b/c", "link", "away"] {
        let about = std::fs::symlink_metadata(bench.place.workdir().join(name)).unwrap();
        assert_eq!((about.uid(), about.gid()), (1234, 2345), "{name}");
    }
    assert_eq!(bench.run("stat -c %u /tmp/outside /tmp").await.stdout, "0\n0\n");
    let again = bench.workshop.own("/workdir", 1234, 2345).await.unwrap();
    assert_eq!(again, Changed { changed: 0, failed: 0 });
    let error = bench.workshop.own("/no/such/place", 1, 1).await.unwrap_err();
    assert!(error.to_string().contains("/no/such/place"), "{error}");
}

async fn a_directory_is_wiped_and_what_its_links_name_is_not(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let precious = bench.place.helpers().join("precious");
    std::fs::write(&precious, "1").unwrap();
    symlink(&precious, bench.place.workdir().join("outside")).unwrap();
    symlink("/etc", bench.place.workdir().join("etc")).unwrap();
    bench.run("mkdir -p a/b/c; echo 1 >a/b/c/d; chmod 0 a/b; chmod 500 a").await;
    let done = bench.workshop.wipe("/workdir").await.unwrap();
    assert_eq!(done, Changed { changed: 6, failed: 0 });
    assert_eq!(std::fs::read_dir(bench.place.workdir()).unwrap().count(), 0);
    assert!(precious.exists());
    assert_eq!(bench.run("ls -d /etc").await.stdout, "/etc\n");
}

async fn commands_run_as_the_user_that_was_asked_for(bed: &Bed) {
    let bench = Workbench::with(bed, |spec| spec.user = Some("1234:2345".into())).await;
    assert_eq!(bench.run("id -u; id -g").await.stdout, "1234\n2345\n");
    let nobody = Workbench::with(bed, |spec| spec.user = Some("nobody-at-all".into())).await;
    let error = nobody.workshop.start(&crate::workbench::shell("true")).await.unwrap_err();
    assert!(
        matches!(&error, SandboxError::NotStarted { reason } if reason.contains("nobody-at-all")),
        "{error}"
    );
}

async fn ordinary_rights_are_those_that_installing_takes(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let outcome = bench.run("touch f && chown 5:6 f && stat -c %u:%g f").await;
    assert_eq!(outcome.stdout, "5:6\n", "{outcome:?}");
    // Those are not everything.
    assert_ne!(bench.run("mount -t tmpfs none /mnt").await.end, exited(0));
}

async fn a_socket_that_became_a_link_is_not_followed_and_commands_still_run(bed: &Bed) {
    if bed.is(ProviderName::Podman) {
        return; // It keeps a process for each exec, for five minutes, which this test would wait for.
    }
    let bench = Workbench::new(bed).await;
    let precious = bench.place.helpers().join("engine.sock");
    let listener = UnixListener::bind(&precious).unwrap();
    listener.set_nonblocking(true).unwrap();
    let script = format!("rm -f /.cofer/channel/sock; ln -s {} /.cofer/channel/sock", precious.display());
    bench.run(&script).await;
    assert_eq!(bench.run("echo hello").await.stdout, "hello\n");
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    // A log that is a link tells nothing of this machine.
    bench.run("ln -s /etc/passwd /.cofer/channel/log.0").await;
    assert!(bench.workshop.log().is_err());
    std::fs::remove_file(bench.place.channel().join("sock")).unwrap();
}

async fn garbage_at_the_door_of_the_helper_disturbs_nobody(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let Ok(connection) = UnixStream::connect(bench.place.channel().join("sock")) else {
        // gVisor keeps its sockets to itself: there is no door.
        assert!(bed.is(ProviderName::Gvisor));
        return;
    };
    let garbage: [&[u8]; 5] = [
        b"GET / HTTP/1.0\r\n\r\n",
        b"R\xff\xff\xff\xff",
        b"R\x00\x00\x00\x05\x01\xff\xff\xff\xff",
        b"R\x00\x00\x00\x01\x63",
        b"I\x00\x00\x00\x00",
    ];
    for said in garbage {
        let mut stream = UnixStream::connect(bench.place.channel().join("sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(said).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer.first(), Some(&b'r'), "{said:?} was answered {answer:?}");
    }
    // Many who say nothing.
    let silent: Vec<_> =
        (0..50).map(|_| UnixStream::connect(bench.place.channel().join("sock")).unwrap()).collect();
    assert_eq!(bench.run("echo hello").await.stdout, "hello\n");
    drop((silent, connection));
    until("the end of their wardens", async || {
        bench.run("ps -o args | grep -c '[/]exe warden'").await.stdout == "1\n"
    })
    .await;
}

fn owner(bed: &Bed) -> Owner {
    Owner {
        instance: bed.instance.clone(),
        kind: "environment".into(),
        id: Uuid::new_v4(),
        name: "net".into(),
        run: 1,
    }
}

fn network_name() -> String {
    format!("cofer-test-{}", &Uuid::new_v4().simple().to_string()[..12])
}

async fn services_are_reached_by_name_and_there_is_a_way_out(bed: &Bed) {
    let network = network_name();
    bed.provider.make_network(&network, &owner(bed)).await.unwrap();
    let mut service = bed.spec("mkdir /tmp/w; echo hello >/tmp/w/index.html; httpd -f -p 80 -h /tmp/w");
    service.network = NetworkMode::Egress;
    service.network_name = Some(network.clone());
    service.aliases = vec!["db".into(), "database".into()];
    service.rights = Rights::Ordinary;
    service.stdio = Stdio::None;
    let service = bed.launch(&service).await;
    let bench = Workbench::with(bed, |spec| spec.network_name = Some(network.clone())).await;
    for name in ["db", "database"] {
        // In two steps: a static shell cannot look names up for its own connections.
        let ask = format!(
            "address=$(nslookup -type=a {name} | grep -A1 ^Name | grep ^Address | cut -d' ' -f2); \
             printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 $address 80 | tail -n 1"
        );
        cofer_testkit::until_seen("the service", async || {
            let answer = bench.run(&ask).await;
            if answer.stdout == "hello\n" { Ok(()) } else { Err(format!("{answer:?}")) }
        })
        .await;
    }
    let out = bench.run("ip route | grep -c '^default'").await;
    assert_eq!(out.stdout, "1\n", "{out:?}");
    let error = bed.provider.remove_network(&network).await.unwrap_err();
    assert!(matches!(error, SandboxError::NetworkInUse { .. }), "{error}");
    bed.provider.destroy(&bench.launched.id).await.unwrap();
    bed.provider.destroy(&service.id).await.unwrap();
    bed.provider.remove_network(&network).await.unwrap();
}

async fn a_network_belongs_to_its_owner_and_is_removed_when_nobody_is_on_it(bed: &Bed) {
    let (network, owner) = (network_name(), owner(bed));
    bed.provider.make_network(&network, &owner).await.unwrap();
    bed.provider.make_network(&network, &owner).await.unwrap();
    let listed = bed.provider.networks(&bed.instance).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0].name, &listed[0].owner), (&network, &owner));
    let stranger = Owner { id: Uuid::new_v4(), ..owner };
    let error = bed.provider.make_network(&network, &stranger).await.unwrap_err();
    assert!(error.to_string().contains("somebody else"), "{error}");
    bed.provider.remove_network(&network).await.unwrap();
    bed.provider.remove_network(&network).await.unwrap();
    assert_eq!(bed.provider.networks(&bed.instance).await.unwrap(), vec![]);
}

async fn an_image_tells_how_it_starts(bed: &Bed) {
    let about = bed.provider.image(BUSYBOX).await.unwrap();
    assert!(!about.id.is_empty());
    let error = bed.provider.image("cofer-test/there-is-no-such-image").await.unwrap_err();
    assert!(matches!(error, SandboxError::ImageMissing { .. }), "{error}");
}

async fn a_checkpoint_has_the_files_and_nothing_of_ours(bed: &Bed) {
    let before = bed.provider.image(BUSYBOX).await.unwrap();
    let image = format!("cofer-test-{}:1", Uuid::new_v4().simple());
    let bench = Workbench::with(bed, |spec| {
        spec.environment = vec![("TOKEN".into(), SecretString::from("very secret"))];
    })
    .await;
    bench.run("id -u; echo kept >/kept; echo not kept >/workdir/not-kept").await;
    bed.provider.checkpoint(&bench.launched.id, &image, no_progress()).await.unwrap();
    let about = bed.provider.image(&image).await.unwrap();
    assert_eq!((&about.entrypoint, &about.cmd), (&before.entrypoint, &before.cmd));
    assert!(!format!("{about:?}").contains("very secret"), "{about:?}");
    let client = bed.engine.client().await.unwrap();
    let labels = client.inspect_image(&image).await.unwrap().config.unwrap().labels.unwrap_or_default();
    let is_empty = |name: &str| labels.get(name).is_none_or(String::is_empty);
    assert!(
        ["cofer.instance", "cofer.id", "cofer.kind", "cofer.provider"].into_iter().all(is_empty),
        "{labels:?}"
    );
    let mut spec = bed.spec("id -u; cat /kept; ls /workdir; echo end");
    spec.image.clone_from(&image);
    assert_eq!(bed.output_of(&spec).await, "0\nkept\nend\n");
    // The command goes on after it was held still.
    assert_eq!(bench.run("echo hello").await.stdout, "hello\n");
    bed.provider.destroy(&bench.launched.id).await.unwrap();
    remove_image(bed, &image).await;
}

async fn remove_image(bed: &Bed, image: &str) {
    let client = bed.engine.client().await.unwrap();
    let options = None::<bollard::query_parameters::RemoveImageOptions>;
    client.remove_image(image, options, None).await.unwrap();
}

async fn a_checkpoint_that_cannot_be_pushed_says_so_and_is_there(bed: &Bed) {
    let bench = Workbench::new(bed).await;
    let image = format!("127.0.0.1:1/cofer-test/{}:1", Uuid::new_v4().simple());
    let error = bed.provider.checkpoint(&bench.launched.id, &image, no_progress()).await.unwrap_err();
    assert!(matches!(&error, SandboxError::NotPushed { .. }), "{error}");
    assert_eq!(error.kind(), Kind::Unavailable);
    bed.provider.image(&image).await.unwrap();
    remove_image(bed, &image).await;
    let gone = cofer_sandbox::SandboxId("0123456789ab".into());
    let error = bed.provider.checkpoint(&gone, "x:1", no_progress()).await.unwrap_err();
    assert!(matches!(error, SandboxError::Gone { .. }), "{error}");
}

async fn a_helper_that_cannot_run_is_told_and_leaves_nothing(bed: &Bed) {
    let place = crate::workbench::Place::new();
    let mut spec = place.spec(bed);
    spec.image = "cofer-test/there-is-no-such-image".into();
    let provider = Arc::new(bed.provider.clone());
    let (channel, helpers) = (place.channel(), place.helpers());
    let error =
        cofer_sandbox::Workshop::launch(provider.clone(), spec, &channel, &helpers).await.unwrap_err();
    assert!(matches!(error, SandboxError::ImageMissing { .. }), "{error}");
    // A channel in which the helper cannot say that it is ready.
    let mut spec = place.spec(bed);
    spec.rights = Rights::Dropped;
    spec.user = Some("1234".into());
    let error = cofer_sandbox::Workshop::launch(provider, spec, &channel, &helpers).await.unwrap_err();
    assert!(error.to_string().contains("helper ended at once"), "{error}");
    assert_eq!(bed.provider.list(&bed.instance).await.unwrap(), vec![]);
}

async fn a_launch_that_is_dropped_takes_its_container_away(bed: &Bed) {
    for milliseconds in [50, 200, 350, 450] {
        let place = crate::workbench::Place::new();
        let provider = Arc::new(bed.provider.clone());
        let (channel, helpers) = (place.channel(), place.helpers());
        let launch = cofer_sandbox::Workshop::launch(provider, place.spec(bed), &channel, &helpers);
        match tokio::time::timeout(Duration::from_millis(milliseconds), launch).await {
            Ok(launched) => bed.provider.destroy(&launched.unwrap().1.id).await.unwrap(),
            Err(_dropped) => {
                until("its end", async || bed.provider.list(&bed.instance).await.unwrap().is_empty()).await;
            }
        }
    }
}

async fn the_socket_is_for_the_owner_of_the_channel_alone(bed: &Bed) {
    let place = crate::workbench::Place::new();
    std::fs::create_dir(place.channel()).unwrap();
    std::os::unix::fs::chown(place.channel(), Some(1234), Some(1234)).unwrap();
    let bench = Workbench::at(bed, place).await;
    let Ok(about) = std::fs::symlink_metadata(bench.place.channel().join("sock")) else {
        assert!(bed.is(ProviderName::Gvisor));
        return;
    };
    assert_eq!((about.uid(), about.mode() & 0o777), (1234, 0o600));
    // Nobody inside but root gets to it, and becomes root by it.
    let outcome = bench.run("ls -ld /.cofer/channel | cut -c1-10").await;
    assert_eq!(outcome.stdout, "drwx------\n");
}
