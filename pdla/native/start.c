/* Names the executable of the Python inside before it starts, so that it finds its packages, also in a virtual environment. */
#include <pthread.h>
#include <stdlib.h>

static void pdla_name_python(void)
{
    const char *asked = getenv("PDLA_PYTHON");
    if (!Py_IsInitialized()) Py_SetProgramName(asked && *asked ? Py_DecodeLocale(asked, NULL) : PDLA_PYTHON);
}

static void pdla_which_python(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, pdla_name_python);
}
