"""Drop-in faces: the names and the files of other lock libraries, over our mechanisms."""
