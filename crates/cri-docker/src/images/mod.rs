//! The CRI image service over the images of a Docker Engine.
//!
//! Current limitations: users of images are told by their status only, not by lists, as the engine's lists
//! do not have them. Before API 1.42, what images use counts layers that they share once for each.

mod credentials;
mod describe;
mod pull;
mod reference;

use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bollard::models::{ImageInspect, ImageSummary};
use bollard::query_parameters::{
    ListContainersOptionsBuilder, ListImagesOptionsBuilder, RemoveImageOptions,
};
use longshore_cri::v1::image_service_server::ImageService;
use longshore_cri::v1::{
    FilesystemIdentifier, FilesystemUsage, Image, ImageFilter, ImageFsInfoRequest,
    ImageFsInfoResponse, ImageSpec, ImageStatusRequest, ImageStatusResponse, ListImagesRequest,
    ListImagesResponse, PullImageRequest, PullImageResponse, RemoveImageRequest,
    RemoveImageResponse, StreamImagesRequest, StreamImagesResponse, UInt64Value,
};
use tokio::sync::Mutex;
use tonic::codegen::BoxStream;
use tonic::{Code, Request, Response, Status};

use self::reference::{Name, Reference};
use crate::error::docker_status;
use crate::{Engine, Settings};

/// Images of one message of a streamed list.
const CHUNK: usize = 256;
/// The first API that tells what images share.
const SHARED_SIZE_API: u32 = 42;

type Result<T> = std::result::Result<T, Error>;

/// Why a call about images failed.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// The engine refused, or is not there.
    #[error(transparent)]
    Engine(#[from] crate::Error),
    /// What was asked for is neither an ID nor a reference.
    #[error("invalid image name {image:?}: {reason}")]
    Name { image: String, reason: &'static str },
    /// Credentials that cannot be used.
    #[error("pull {image}: invalid credentials: {reason}")]
    Credentials { image: String, reason: &'static str },
    /// A pull that failed.
    #[error("pull {image}: {text}")]
    Pull { image: String, code: Code, text: String },
    /// A registry that is out of order. Kubelets know the text's start.
    #[error("RegistryUnavailable: pull {image}: {text}")]
    RegistryUnavailable { image: String, text: String },
    /// A pull without progress.
    #[error("pull {image}: cancelled after {seconds} s without progress; last: {last:?}")]
    Stalled { image: String, seconds: u64, last: String },
    /// A pull that succeeded, of an image that is gone.
    #[error("pull {0}: the image was removed meanwhile")]
    Gone(String),
    /// Containers need the image.
    #[error("image {image} is used by container {container}")]
    InUse { image: String, container: String },
    /// The file system of images cannot be read.
    #[error("file system of images {path:?}: {source}")]
    FileSystem { path: String, source: nix::Error },
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        let code = match error {
            Error::Engine(error) => return error.into(),
            Error::Name { .. } | Error::Credentials { .. } => Code::InvalidArgument,
            Error::Pull { code, .. } => code,
            Error::RegistryUnavailable { .. } => Code::Unavailable,
            Error::Stalled { .. } => Code::DeadlineExceeded,
            Error::InUse { .. } => Code::FailedPrecondition,
            Error::Gone(_) | Error::FileSystem { .. } => Code::Unknown,
        };
        Self::new(code, text)
    }
}

/// Serves images.
#[derive(Debug, Clone)]
pub struct Images {
    engine: Engine,
    settings: Arc<Settings>,
    /// Held by the one removal under way: the engine fails those of one image at the same time.
    removing: Arc<Mutex<()>>,
}

impl Images {
    /// The images of this engine.
    #[must_use]
    pub fn new(engine: Engine, settings: Arc<Settings>) -> Self {
        Self { engine, settings, removing: Arc::default() }
    }

    async fn list(&self, filter: Option<ImageFilter>) -> Result<Vec<Image>> {
        let wanted = filter.and_then(|filter| filter.image).unwrap_or_default().image;
        let name = match wanted.is_empty() {
            true => None,
            false => Some(parsed(&wanted)?),
        };
        let images = self.summaries(false).await?;
        let pinned = &self.settings.sandbox_image;
        let images = images.iter().map(|summary| describe::listed(summary, pinned));
        let is_wanted = |image: &Image| {
            name.as_ref().is_none_or(|name| describe::is_listed_for(name, &wanted, image))
        };
        Ok(images.filter(is_wanted).collect())
    }

    /// All images but intermediate ones.
    async fn summaries(&self, shared_size: bool) -> Result<Vec<ImageSummary>> {
        let options = ListImagesOptionsBuilder::new().shared_size(shared_size).build();
        let images = self.engine.list_images(Some(options)).await;
        Ok(images.map_err(|error| crate::Error::docker("list images", error))?)
    }

    /// The image of that ID or reference, or whose ID begins so, if it is there.
    async fn find(&self, wanted: &str) -> Result<Option<ImageInspect>> {
        let reference = match parsed(wanted)? {
            Name::Id(id) => return self.inspect(&id, |image| image.id == id).await,
            Name::Reference(reference) => reference,
        };
        let named = reference.clone().tagged();
        // the engine also takes an ID for the digest of any repository
        let is_named =
            |image: &Image| describe::is_named(&named, &image.repo_tags, &image.repo_digests);
        let found = self.inspect(&named.to_string(), is_named).await?;
        if found.is_some() || !reference::is_hex(wanted) {
            return Ok(found);
        }
        self.inspect(wanted, |image| describe::is_start_of(wanted, &image.id)).await
    }

    /// The image that the engine knows by that name, if it is one that is meant.
    async fn inspect(
        &self,
        name: &str,
        is_meant: impl Fn(&Image) -> bool,
    ) -> Result<Option<ImageInspect>> {
        match self.engine.inspect_image(name).await {
            Ok(image) => Ok(Some(image).filter(|image| is_meant(&describe::inspected(image, "")))),
            Err(error) if docker_status(&error) == Some(404) => Ok(None),
            Err(error) => Err(crate::Error::docker(format!("inspect image {name}"), error).into()),
        }
    }

    async fn status(&self, wanted: &str, is_verbose: bool) -> Result<ImageStatusResponse> {
        let Some(found) = self.find(wanted).await? else {
            return Ok(ImageStatusResponse::default());
        };
        let image = describe::inspected(&found, &self.settings.sandbox_image);
        let mut response = ImageStatusResponse::default();
        if is_verbose {
            let history = self.engine.image_history(&image.id).await;
            let action = || format!("history of image {}", image.id);
            let history = history.map_err(|error| crate::Error::docker(action(), error))?;
            let info = describe::verbose(&found, &history);
            response.info.insert("info".to_owned(), info);
        }
        response.image = Some(image);
        Ok(response)
    }

    /// Pulls an image and returns its ID.
    async fn pull(&self, request: PullImageRequest) -> Result<String> {
        let wanted = request.image.unwrap_or_default().image;
        let reference = Reference::parse(&wanted).map_err(|reason| name_error(&wanted, reason))?;
        let reference = reference.tagged();
        let deadline = self.settings.image_pull_progress_deadline;
        pull::pull(&self.engine, &reference, request.auth.as_ref(), deadline).await?;
        let found = self.find(&reference.to_string()).await?;
        found.and_then(|image| image.id).ok_or_else(|| Error::Gone(reference.to_string()))
    }

    /// Removes an image with all of its tags and digests, unless a container needs it.
    async fn remove(&self, wanted: &str) -> Result<()> {
        let _one = self.removing.lock().await;
        let Some(image) = self.find(wanted).await? else { return Ok(()) };
        let id = image.id.clone().unwrap_or_default();
        // checked first: without its tags, an image that stays would have to be pulled again
        if let Some(container) = self.user(&id).await? {
            return Err(Error::InUse { image: wanted.to_owned(), container });
        }
        let described = describe::inspected(&image, "");
        for name in described.repo_tags.iter().chain(&described.repo_digests).chain([&id]) {
            match self.engine.remove_image(name, None::<RemoveImageOptions>, None).await {
                Ok(_) => {}
                // with the last tag, the engine removes digests and the image
                Err(error) if docker_status(&error) == Some(404) => {}
                // somebody else was faster: the engine's answer to that is an error of its own
                Err(_) if self.inspect(&id, |_| true).await?.is_none() => return Ok(()),
                Err(error) => {
                    return Err(crate::Error::docker(format!("remove image {name}"), error).into());
                }
            }
        }
        Ok(())
    }

    /// A container of that image.
    async fn user(&self, image: &str) -> Result<Option<String>> {
        let filters = HashMap::from([("ancestor", vec![image])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let containers = self.engine.list_containers(Some(options)).await;
        let action = || format!("list containers of image {image}");
        let containers = containers.map_err(|error| crate::Error::docker(action(), error))?;
        // an image that was built upon has descendants
        let user = containers.into_iter().find(|found| found.image_id.as_deref() == Some(image));
        Ok(user.map(|found| found.id.unwrap_or_default()))
    }

    async fn file_systems(&self) -> Result<ImageFsInfoResponse> {
        let path = self.engine.settings().await?.root_dir.clone();
        let files = match nix::sys::statvfs::statvfs(path.as_str()) {
            Ok(found) => found.files().saturating_sub(found.files_free()),
            Err(source) => return Err(Error::FileSystem { path, source }),
        };
        let is_shared_known = self.engine.api() >= SHARED_SIZE_API;
        let bytes = used_bytes(&self.summaries(is_shared_known).await?);
        let usage = |bytes: Option<u64>| FilesystemUsage {
            timestamp: now(),
            fs_id: Some(FilesystemIdentifier { mountpoint: path.clone() }),
            used_bytes: bytes.map(|value| UInt64Value { value }),
            inodes_used: Some(UInt64Value { value: files }),
        };
        Ok(ImageFsInfoResponse {
            image_filesystems: vec![usage(Some(bytes))],
            // writable layers are on the same file system; their size is not known without reading them
            container_filesystems: vec![usage(None)],
        })
    }
}

/// What images use: what each has alone, and what they share. Two shared parts of one size are taken for
/// the same one, as cri-dockerd does.
fn used_bytes(images: &[ImageSummary]) -> u64 {
    let bytes = |count: i64| u64::try_from(count).unwrap_or_default();
    let shared: BTreeSet<u64> = images.iter().map(|image| bytes(image.shared_size)).collect();
    let alone =
        images.iter().map(|image| bytes(image.size).saturating_sub(bytes(image.shared_size)));
    alone.chain(shared).fold(0, u64::saturating_add)
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

fn parsed(wanted: &str) -> Result<Name> {
    Name::parse(wanted).map_err(|reason| name_error(wanted, reason))
}

fn name_error(wanted: &str, reason: &'static str) -> Error {
    Error::Name { image: wanted.chars().take(512).collect(), reason }
}

fn name(spec: Option<ImageSpec>) -> String {
    spec.unwrap_or_default().image
}

/// The response to a call.
async fn answer<T>(
    work: impl Future<Output = Result<T>>,
) -> std::result::Result<Response<T>, Status> {
    Ok(Response::new(work.await?))
}

#[tonic::async_trait]
impl ImageService for Images {
    async fn list_images(
        &self,
        request: Request<ListImagesRequest>,
    ) -> std::result::Result<Response<ListImagesResponse>, Status> {
        let images = self.list(request.into_inner().filter);
        answer(async { Ok(ListImagesResponse { images: images.await? }) }).await
    }

    async fn stream_images(
        &self,
        request: Request<StreamImagesRequest>,
    ) -> std::result::Result<Response<BoxStream<StreamImagesResponse>>, Status> {
        let images = self.list(request.into_inner().filter).await?;
        let parts =
            images.chunks(CHUNK).map(|part| Ok(StreamImagesResponse { images: part.to_vec() }));
        let parts: Vec<_> = parts.collect();
        Ok(Response::new(Box::pin(futures::stream::iter(parts))))
    }

    async fn image_status(
        &self,
        request: Request<ImageStatusRequest>,
    ) -> std::result::Result<Response<ImageStatusResponse>, Status> {
        let request = request.into_inner();
        answer(self.status(&name(request.image), request.verbose)).await
    }

    async fn pull_image(
        &self,
        request: Request<PullImageRequest>,
    ) -> std::result::Result<Response<PullImageResponse>, Status> {
        let pulled = self.pull(request.into_inner());
        let response = async { Ok(PullImageResponse { image_ref: pulled.await? }) };
        answer(response).await
    }

    async fn remove_image(
        &self,
        request: Request<RemoveImageRequest>,
    ) -> std::result::Result<Response<RemoveImageResponse>, Status> {
        let name = name(request.into_inner().image);
        answer(async { self.remove(&name).await.map(|()| RemoveImageResponse {}) }).await
    }

    async fn image_fs_info(
        &self,
        _: Request<ImageFsInfoRequest>,
    ) -> std::result::Result<Response<ImageFsInfoResponse>, Status> {
        answer(self.file_systems()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_of_image_sizes() {
        let image =
            |size, shared_size| ImageSummary { size, shared_size, ..ImageSummary::default() };
        for (images, expected) in [
            (vec![], 0),
            (vec![image(5, -1), image(7, -1)], 12),
            (vec![image(5, 3), image(7, 3)], 2 + 4 + 3),
            (vec![image(5, 9), image(-1, i64::MIN)], 9),
            (vec![image(i64::MAX, -1), image(i64::MAX, -1), image(i64::MAX, -1)], u64::MAX),
        ] {
            assert_eq!(used_bytes(&images), expected);
        }
    }
}
