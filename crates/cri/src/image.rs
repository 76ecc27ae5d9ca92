//! Calls about images, to the image service's endpoint.

use std::fmt;

use crate::v1::{
    AuthConfig, Image, ImageFilter, ImageFsInfoRequest, ImageFsInfoResponse, ImageSpec,
    ImageStatusRequest, ListImagesRequest, PodSandboxConfig, PullImageRequest, RemoveImageRequest,
};
use crate::{Result, Runtime};

impl Runtime {
    /// The images that match; all with no filter.
    pub async fn list_images(&self, filter: Option<ImageFilter>) -> Result<Vec<Image>> {
        let call = self.image_call("ListImages", "list_images");
        let request = call.request(ListImagesRequest { filter });
        let answer = call.answer(self.images().list_images(request)).await?;
        Ok(answer.images)
    }

    /// The image of this name or id, if the node has it. Its id and size are
    /// always there.
    pub async fn image_status(&self, image: ImageSpec) -> Result<Option<Image>> {
        let call = self.image_call("ImageStatus", "image_status");
        let request = call.request(ImageStatusRequest { image: Some(image), verbose: false });
        let answer = call.answer(self.images().image_status(request)).await?;
        if let Some(image) = &answer.image {
            call.demand(!image.id.is_empty(), "image.id")?;
            call.demand(image.size != 0, "image.size")?;
        }
        Ok(answer.image)
    }

    /// Pulls an image, for as long as it takes; gives the reference to run it
    /// by. Drop the future to give up.
    pub async fn pull_image(
        &self,
        image: ImageSpec,
        auth: Option<AuthConfig>,
        sandbox_config: Option<PodSandboxConfig>,
    ) -> Result<String> {
        let call = self.image_call("PullImage", "pull_image").within(None);
        let request = call.request(PullImageRequest { image: Some(image), auth, sandbox_config });
        let answer = call.answer(self.images().pull_image(request)).await?;
        call.demand(!answer.image_ref.is_empty(), "image_ref")?;
        Ok(answer.image_ref)
    }

    /// Removes an image. One that is gone already is no error.
    pub async fn remove_image(&self, image: ImageSpec) -> Result<()> {
        let call = self.image_call("RemoveImage", "remove_image");
        let request = call.request(RemoveImageRequest { image: Some(image) });
        call.answer(self.images().remove_image(request)).await?;
        Ok(())
    }

    /// The file systems that hold images and containers.
    pub async fn image_fs_info(&self) -> Result<ImageFsInfoResponse> {
        let call = self.image_call("ImageFsInfo", "image_fs_info");
        let request = call.request(ImageFsInfoRequest {});
        call.answer(self.images().image_fs_info(request)).await
    }
}

/// Shows who logs in where, and no secret.
impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthConfig")
            .field("username", &self.username)
            .field("server_address", &self.server_address)
            .finish_non_exhaustive()
    }
}
