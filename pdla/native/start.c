/* Tells the Python inside, before it starts, which executable it is: so it finds its packages, in a virtual environment too. */
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
