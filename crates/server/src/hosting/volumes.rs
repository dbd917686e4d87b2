//! The names of volumes: `cofer-<server>-<path>-<mark>`.
//!
//! A name is made of the server's name, not its id, so that a server which is registered again under its name finds its
//! volumes. The mark keeps apart what would otherwise read alike: other projects, other Cofers on the same engine, paths that
//! differ only in what a name cannot hold.

use cofer_model::{ProjectId, ServerName};
use cofer_sandbox::{VolumeMount, VolumeOwner};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

const MARK_BYTES: usize = 5;
const PATH_CHARS_MAX: usize = 40;

/// The volumes of a server, one for each path.
pub fn mounts(instance: &str, project: ProjectId, server: &ServerName, paths: &[String]) -> Vec<VolumeMount> {
    let mount = |path: &String| VolumeMount {
        name: name(instance, project, server, path),
        path: path.clone(),
        owner: VolumeOwner {
            instance: instance.to_owned(),
            project_id: project.0,
            server: server.to_string(),
        },
    };
    paths.iter().map(mount).collect()
}

fn name(instance: &str, project: ProjectId, server: &ServerName, path: &str) -> String {
    let path = path.trim_end_matches('/');
    let whole = format!("{instance}\n{project}\n{server}\n{path}");
    let mark = HEXLOWER.encode(&Sha256::digest(whole.as_bytes())[..MARK_BYTES]);
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_') { c } else { '-' };
    let path: String = path.trim_matches('/').chars().take(PATH_CHARS_MAX).map(plain).collect();
    format!("cofer-{server}-{path}-{mark}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_well_and_differs_wherever_the_volume_does() {
        let project = ProjectId::generate();
        let server = ServerName::try_from("files".to_owned()).unwrap();
        let first = name("one", project, &server, "/data");
        assert!(first.starts_with("cofer-files-data-"), "{first}");
        assert_eq!(first, name("one", project, &server, "/data/"));
        for other in [
            name("two", project, &server, "/data"),
            name("one", ProjectId::generate(), &server, "/data"),
            name("one", project, &server, "/-data"),
        ] {
            assert_ne!(first, other);
        }
        assert!(name("one", project, &server, "/ä/b c").starts_with("cofer-files---b-c-"));
    }
}
