//! Calls about images, to the image service's endpoint.

use std::fmt;

use crate::v1::{
    AuthConfig, Image, ImageFilter, ImageFsInfoRequest, ImageFsInfoResponse, ImageSpec,
    ImageStatusRequest, ListImagesRequest, PodSandboxConfig, PullImageRequest, RemoveImageRequest,
    StreamImagesRequest,
};
use crate::{Result, Runtime};

impl Runtime {
    /// The images that match the filter.
    pub async fn list_images(&self, filter: Option<ImageFilter>) -> Result<Vec<Image>> {
        if self.streams_lists() {
            let call = self.image_call("StreamImages", "list_images");
            let request = call.request(StreamImagesRequest { filter: filter.clone() });
            let mut client = self.images();
            let parts = client.stream_images(request);
            if let Some(list) = self.list_in_parts(call, parts, |part| part.images).await? {
                return Ok(list);
            }
        }
        let call = self.image_call("ListImages", "list_images");
        let request = call.request(ListImagesRequest { filter });
        let response = call.response(self.images().list_images(request)).await?;
        Ok(response.images)
    }

    /// The image of this name or id, if it is present. Its id and size are always
    /// present.
    pub async fn image_status(&self, image: ImageSpec) -> Result<Option<Image>> {
        let call = self.image_call("ImageStatus", "image_status");
        let request = call.request(ImageStatusRequest { image: Some(image), verbose: false });
        let response = call.response(self.images().image_status(request)).await?;
        if let Some(image) = &response.image {
            call.require(!image.id.is_empty(), "image.id")?;
            call.require(image.size != 0, "image.size")?;
        }
        Ok(response.image)
    }

    /// Pulls an image, without deadline; returns its reference for container configs.
    /// Drop the future to cancel.
    pub async fn pull_image(
        &self,
        image: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox_config: Option<PodSandboxConfig>,
    ) -> Result<String> {
        let call = self.image_call("PullImage", "pull_image").within(None);
        let request = call.request(PullImageRequest { image: Some(image), auth, sandbox_config });
        let response = call.response(self.images().pull_image(request)).await?;
        call.require(!response.image_ref.is_empty(), "image_ref")?;
        Ok(response.image_ref)
    }

    /// Removes an image. A missing one is no error.
    pub async fn remove_image(&self, image: ImageSpec) -> Result<()> {
        let call = self.image_call("RemoveImage", "remove_image");
        let request = call.request(RemoveImageRequest { image: Some(image) });
        call.response(self.images().remove_image(request)).await?;
        Ok(())
    }

    /// The file systems of images and writable layers.
    pub async fn image_fs_info(&self) -> Result<ImageFsInfoResponse> {
        let call = self.image_call("ImageFsInfo", "image_fs_info");
        let request = call.request(ImageFsInfoRequest {});
        call.response(self.images().image_fs_info(request)).await
    }
}

/// Shows user and server, and no secret.
impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthConfig")
            .field("username", &self.username)
            .field("server_address", &self.server_address)
            .finish_non_exhaustive()
    }
}
